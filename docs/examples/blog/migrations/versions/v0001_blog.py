"""The tables of the blog."""

from alembic import op

revision = "0001"
down_revision = None

TABLES = """
create table authors (
    id bigint generated always as identity primary key,
    name text not null unique
);
create table posts (
    id bigint generated always as identity primary key,
    author_id bigint not null references authors,
    title text not null,
    body text not null,
    published_at timestamptz
);
create table tags (
    id bigint generated always as identity primary key,
    name text not null unique
);
create table post_tags (
    post_id bigint references posts on delete cascade,
    tag_id bigint references tags on delete cascade,
    primary key (post_id, tag_id)
);
create table comments (
    id bigint generated always as identity primary key,
    post_id bigint not null references posts on delete cascade,
    name text not null,
    text text not null
);
create table author_counts (
    author text primary key,
    posts bigint not null
);
"""


def upgrade() -> None:
    """Create the tables."""
    op.execute(TABLES)


def downgrade() -> None:
    """Drop the tables."""
    op.execute("drop table author_counts, comments, post_tags, tags, posts, authors")
