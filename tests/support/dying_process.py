"""A process that dies at some of its calls, on either side of each."""


class DiedError(Exception):
    """The process is gone."""


class Death:
    """
    Comes at the n-th call, before or after it has its effect; then at the next n-th.

    ``left`` is above zero once no further death is due that was not reached.
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

    def threaten(self, shop):
        """Wrap all that a shop's writers do to their targets and to Kafka."""
        for owner, names in (
            (shop.sink, ("apply", "flush")),
            (shop.letters, ("put", "resolve", "reply")),
            (shop.repairs, ("request_keys", "request_all")),
        ):
            for name in names:
                setattr(owner, name, self.around(getattr(owner, name)))


def repeat(shop, step):
    """Carry a step out; after a death, a new process does, which knows the topic."""
    while True:
        try:
            return step()
        except DiedError:
            shop.begin()
