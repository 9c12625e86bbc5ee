"""The blog's commands, as subcommands of ``flask``."""

from datetime import UTC, datetime, timedelta

import click
from flask import Blueprint
from sqlalchemy import Select, func, insert, select
from sqlalchemy.orm import Session

from blog import posts, reads
from blog.database import sessions
from blog.models import Author, AuthorCount, Post, Tag

blueprint = Blueprint("commands", __name__, cli_group=None)

AUTHORS = ("ada", "barbara", "grace")


@blueprint.cli.command()
def seed() -> None:
    """Fill the blog with posts from the years before it had events."""
    with sessions().begin() as session:
        authors = [Author(name=name) for name in AUTHORS]
        archive = Tag(name="archive")
        session.add_all(
            Post(
                author=authors[n % 3],
                title=f"Letter {n} from the archive",
                body="It rained all day.",
                tags=[archive],
                published_at=datetime(2019, 1, 1, tzinfo=UTC) + timedelta(days=n),
            )
            for n in range(300)
        )
        session.flush()
        session.execute(insert(AuthorCount).from_select(["author", "posts"], _posts()))
    click.echo("300 posts by ada, barbara, grace")


@blueprint.cli.command()
@click.argument("author")
@click.argument("title")
@click.argument("body")
def publish(author: str, title: str, body: str) -> None:
    """Publish a post."""
    with sessions().begin() as session:
        post = posts.publish(session, author, title, body)
        click.echo(f"post {post.id} by {author}")


@blueprint.cli.command()
@click.argument("count", type=int)
def load(count: int) -> None:
    """Publish this many posts, each in its own transaction."""
    for n in range(count):
        with sessions().begin() as session:
            posts.publish(session, AUTHORS[n % 3], f"Note {n}", "It is short.")
    click.echo(f"{count} posts")


@blueprint.cli.command()
@click.argument("post_id", type=int)
def cached(post_id: int) -> None:
    """Show a post from the cache."""
    for name, text in sorted(reads.cached_post(post_id).items()):
        click.echo(f"{name}: {text}")


@blueprint.cli.command()
@click.argument("text")
def search(text: str) -> None:
    """Search posts for words in their title and body."""
    for post in reads.found_posts(text):
        click.echo(f"{post['id']}: {post['title']}")


@blueprint.cli.command()
@click.pass_context
def counts(context: click.Context) -> None:
    """Compare the counts with the posts; exit 1 if they differ."""
    with sessions().begin() as session:
        found = dict(session.execute(_posts()).tuples().all())
        counted = _counted(session)
    for author, number in sorted(found.items()):
        click.echo(f"{author}: {number} posts, {counted.get(author, 0)} counted")
    context.exit(int(found != counted))


def _posts() -> Select[tuple[str, int]]:
    """Select the number of posts of each author."""
    return (
        select(Author.name, func.count())
        .join(Post, Post.author_id == Author.id)
        .group_by(Author.name)
    )


def _counted(session: Session) -> dict[str, int]:
    return {row.author: row.posts for row in session.scalars(select(AuthorCount))}
