"""The blog's own tests, on a seeded database; they leave nothing behind."""

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from blog import create_app, posts
from blog.database import sessions


@pytest.fixture
def session() -> Iterator[Session]:
    """Provide a session whose transaction is rolled back."""
    with sessions()() as session:
        yield session


def test_a_published_post_is_an_event(session, recorded_events):
    """A post and its event share one transaction, and the post's id is the key."""
    post = posts.publish(session, "ada", "Notes", "On the engine.", ["engines"])

    (event,) = recorded_events.of("PostPublished")
    assert event.aggregate_id == str(post.id)
    assert event.payload["title"] == "Notes"


def test_a_rolled_back_post_records_no_event(session, recorded_events):
    """A transaction that is rolled back leaves no event."""
    posts.publish(session, "ada", "Notes", "On the engine.")
    session.rollback()

    assert recorded_events == []


def test_pages_show_posts(recorded_events):
    """The list shows the newest posts, and an unknown post is not found."""
    client = create_app().test_client()

    assert len(client.get("/posts").get_json()) == 20
    assert client.get("/posts/0").status_code == 404
    assert recorded_events == []
