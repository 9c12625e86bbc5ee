"""Which users a run has: those of the loop that was asked for, as far as tags allow."""

from typing import Final

from locust import User
from locust.env import Environment

from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.people import options_of
from towpath.loadtests.users import OpenLoop, ReturningCustomer, Shopper

_TAGS: Final = "locust_tag_set"


def choose_users(environment: Environment) -> None:
    """
    Choose the users, unless somebody has named them.

    Raises:
        LoadOptionError: No task has one of the tags; a loop without its rate.
    """
    options = options_of(environment)
    if options.user_classes or options.class_picker:
        _check_named(options.user_classes, options.load_rate)
        return
    share = options.load_return_share
    weights: dict[type[User], float] = {OpenLoop: 1.0}
    if not options.load_rate:
        weights = {Shopper: 1 - share, ReturningCustomer: share}
    tags, without = set(options.tags or ()), set(options.exclude_tags or ())
    chosen = [user for user in weights if _has_tasks(user, tags, without)]
    if not chosen:
        known = sorted(_tags_of(Shopper) | _tags_of(ReturningCustomer))
        message = f"no task is left by the tags; there are {', '.join(known)}"
        raise LoadOptionError(message)
    if len(chosen) > 1:
        chosen = [user for user in chosen if weights[user]]
    for user in chosen:
        user.weight = weights[user] or 1.0
    environment.user_classes = chosen


def _check_named(names: list[str], rate: float) -> None:
    if OpenLoop.__name__ in names and not rate:
        message = "OpenLoop needs a rate: give --load-rate, arrivals a second"
        raise LoadOptionError(message)


def _has_tasks(user: type[User], tags: set[str], without: set[str]) -> bool:
    # As locust filters them later, too late to leave a class out.
    return any(
        (not tags or tags & own) and not without & own
        for own in map(_tags_of_task, user.tasks)
    )


def _tags_of(user: type[User]) -> set[str]:
    return set().union(*map(_tags_of_task, user.tasks))


def _tags_of_task(task: object) -> set[str]:
    return getattr(task, _TAGS, set())
