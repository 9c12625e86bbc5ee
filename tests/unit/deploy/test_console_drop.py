"""The confirmation prompt for a drop on the console."""

from types import SimpleNamespace

from towpath.deploy.console import ConfigurationFile, Samples
from towpath.deploy.console.pages import create_app
from towpath.deploy.console.security import Access, AuditLog
from towpath.schemas.clock import SystemClock

TOKEN = "a-token-of-this-test-alone"  # noqa: S105 - used only in this test
CONFIGURATION = """
version = 1
[[source]]
dsn = "postgresql://shop"
tables = ["shop.Orders"]
[kafka]
bootstrap_servers = "kafka:9092"
[[sink]]
name = "cache"
kind = "cache"
url = "redis://cache"
[[sink.route]]
topic = "towpath.shop.Orders"
name = "Orders"
"""


def test_the_names_in_the_prompt_keep_their_case(tmp_path):
    """
    Only the first letter of the sentence is capitalized.
    """
    config = tmp_path / "towpath.toml"
    config.write_text(CONFIGURATION)
    file = ConfigurationFile(config, {})
    state = SimpleNamespace(file=file, samples=Samples(), refresh=lambda: None)
    clock = SystemClock()
    access = Access(TOKEN, AuditLog(tmp_path / "audit", clock), clock, is_local=True)
    response = (
        create_app(state, access)
        .test_client()
        .post(
            "/sinks/drop",
            data={"sink": "cache", "data": "true"},
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
    )

    assert "Drop the sink cache, and all that it wrote (Orders)?" in response.text
