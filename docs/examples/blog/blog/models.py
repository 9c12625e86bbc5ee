"""The blog's six tables; ``migrations`` creates them."""

from datetime import datetime

from sqlalchemy import Column, DateTime, ForeignKey, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """The base of all models."""


post_tags = Table(
    "post_tags",
    Base.metadata,
    Column("post_id", ForeignKey("posts.id"), primary_key=True),
    Column("tag_id", ForeignKey("tags.id"), primary_key=True),
)


class Author(Base):
    """A person who writes posts."""

    __tablename__ = "authors"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Tag(Base):
    """A label by which readers find posts."""

    __tablename__ = "tags"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Comment(Base):
    """A reader's remark on a post."""

    __tablename__ = "comments"

    id: Mapped[int] = mapped_column(primary_key=True)
    post_id: Mapped[int] = mapped_column(ForeignKey("posts.id"))
    name: Mapped[str]
    text: Mapped[str]


class Post(Base):
    """A published text or a draft; a draft has no time of publication."""

    __tablename__ = "posts"

    id: Mapped[int] = mapped_column(primary_key=True)
    author_id: Mapped[int] = mapped_column(ForeignKey("authors.id"))
    title: Mapped[str]
    body: Mapped[str]
    published_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))

    author: Mapped[Author] = relationship()
    tags: Mapped[list[Tag]] = relationship(secondary=post_tags)
    comments: Mapped[list[Comment]] = relationship(order_by=Comment.id)


class AuthorCount(Base):
    """How many posts an author has published, as ``consumer.py`` counts them."""

    __tablename__ = "author_counts"

    author: Mapped[str] = mapped_column(primary_key=True)
    posts: Mapped[int]
