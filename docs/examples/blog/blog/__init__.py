"""A small blog on Flask and SQLAlchemy: authors publish posts, readers comment."""

from flask import Flask

from blog import commands, views


def create_app() -> Flask:
    """Return the application; Flask finds this function by its name."""
    app = Flask(__name__)
    app.register_blueprint(views.blueprint)
    app.register_blueprint(commands.blueprint)
    return app
