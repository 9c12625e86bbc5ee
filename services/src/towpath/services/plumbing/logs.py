"""
Log records as JSON lines on standard error: lower-case prose, facts as fields.

The standard library's loggers (gunicorn's, alembic's) go through the same processors.
Payloads, credentials and keys are never fields.
"""

import logging
import sys

import structlog


def configure_logs(level: int = logging.INFO) -> None:
    """Send every log record of this process through structlog."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    # Its start-up remarks; what was migrated is told by the migration itself.
    logging.getLogger("alembic").setLevel(logging.WARNING)
