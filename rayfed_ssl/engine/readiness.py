"""What a run needs besides its configuration and its data, and a finished run needs no more."""

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.scoring import check_protocols


def check_ready(federation: Federation) -> None:
    """Refuse, before a run begins or goes on, what it would miss later: the encoder to start from, protocols' data.

    Raises:
        ConfigError: One of them is not there, or does not fit.
    """
    _ = federation.task.start
    config = federation.config
    check_protocols(config.evaluation.chosen, config, federation.task, federation.dataset)
