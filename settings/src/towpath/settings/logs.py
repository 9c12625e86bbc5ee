"""
Log records of relay and sinks: JSON lines on standard error.

Lower-case prose, facts as fields; payloads, credentials and keys are never fields.
"""

import logging
import sys

import structlog


def configure_logs() -> None:
    """Send every structured log record of this process to standard error."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
