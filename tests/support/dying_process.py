"""A process that dies at some of its calls, before or after they take effect."""


class DiedError(Exception):
    """The process has died."""


class Death:
    """
    Raises ``DiedError`` at certain calls, before or after their effect.

    ``at`` has the number of calls up to each death, counted from the one before it.
    ``left`` is above zero if the last death was not reached.
    """

    def __init__(self, *at, is_after):
        self._due = list(at)
        self.left = self._due.pop(0) if self._due else 0
        self._is_after = is_after

    def around(self, call):
        """Wrap a call."""

        def wrapped(*arguments, **named):
            self.left -= 1
            dies = self.left == 0
            if dies and self._due:
                self.left = self._due.pop(0)
            if dies and not self._is_after:
                raise DiedError
            result = call(*arguments, **named)
            if dies:
                raise DiedError
            return result

        return wrapped

    def wrap_calls(self, shop):
        """Wrap the calls of a shop's writers to their targets and to Kafka."""
        for owner, names in (
            (shop.sink, ("apply", "flush")),
            (shop.letters, ("put", "resolve", "reply")),
            (shop.repairs, ("request_keys", "request_all")),
        ):
            for name in names:
                setattr(owner, name, self.around(getattr(owner, name)))


def repeat(shop, step):
    """Run a step; after a death, restart the shop from the topic and retry."""
    while True:
        try:
            return step()
        except DiedError:
            shop.begin()
