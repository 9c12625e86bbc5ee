"""The blog over HTTP, as JSON."""

from typing import Any

from flask import Blueprint, abort, request

from blog import posts
from blog.database import sessions
from blog.models import Post

blueprint = Blueprint("blog", __name__)


@blueprint.get("/posts")
def list_posts() -> list[dict[str, Any]]:
    """List the newest posts."""
    with sessions().begin() as session:
        return [_shown(post) for post in posts.newest(session, 20)]


@blueprint.get("/posts/<int:post_id>")
def show_post(post_id: int) -> dict[str, Any]:
    """Show a post with its comments."""
    with sessions().begin() as session:
        post = session.get(Post, post_id) or abort(404)
        comments = [{"name": c.name, "text": c.text} for c in post.comments]
        return {**_shown(post), "body": post.body, "comments": comments}


@blueprint.post("/posts")
def publish_post() -> tuple[dict[str, Any], int]:
    """Publish a post."""
    form = request.get_json()
    with sessions().begin() as session:
        post = posts.publish(
            session, form["author"], form["title"], form["body"], form.get("tags", ())
        )
        return _shown(post), 201


@blueprint.post("/posts/<int:post_id>/comments")
def add_comment(post_id: int) -> tuple[dict[str, Any], int]:
    """Comment on a post."""
    form = request.get_json()
    with sessions().begin() as session:
        post = session.get(Post, post_id) or abort(404)
        remark = posts.comment(session, post, form["name"], form["text"])
        return {"id": remark.id}, 201


def _shown(post: Post) -> dict[str, Any]:
    return {
        "id": post.id,
        "author": post.author.name,
        "title": post.title,
        "tags": sorted(tag.name for tag in post.tags),
    }
