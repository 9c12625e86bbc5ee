"""Operations on posts; each runs in the transaction of its caller."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from blog.events import PostPublished
from blog.models import Author, Comment, Post, Tag
from towpath.outbox import record

Named = TypeVar("Named", Author, Tag)


def publish(
    session: Session, author: str, title: str, body: str, tags: Iterable[str] = ()
) -> Post:
    """Publish a post, and record its event in the same transaction."""
    post = Post(
        author=_named(session, Author, author),
        title=title,
        body=body,
        tags=[_named(session, Tag, tag) for tag in tags],
        published_at=datetime.now(UTC),
    )
    session.add(post)
    session.flush()
    record(session, PostPublished(post_id=post.id, author=author, title=title))
    return post


def comment(session: Session, post: Post, name: str, text: str) -> Comment:
    """Add a reader's comment."""
    remark = Comment(post_id=post.id, name=name, text=text)
    session.add(remark)
    session.flush()
    return remark


def newest(session: Session, count: int) -> Sequence[Post]:
    """Return the newest posts."""
    return session.scalars(select(Post).order_by(Post.id.desc()).limit(count)).all()


def _named(session: Session, kind: type[Named], name: str) -> Named:
    found = session.scalar(select(kind).where(kind.name == name))
    if found is None:
        found = kind(name=name)
        session.add(found)
    return found
