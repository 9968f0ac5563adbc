"""The method that a run runs: the configuration's, within what `privacy.*` puts around it."""

from rayfed_ssl.config.privacy import Privacy
from rayfed_ssl.method import Method
from rayfed_ssl.privacy.accounting import Accounted
from rayfed_ssl.privacy.client_level import ClientLevel


def protected(method: Method, privacy: Privacy) -> Method:
    """Put around a method what the configuration asks for."""
    if privacy.clip is None:
        return method
    return ClientLevel(
        method=method, clip=privacy.clip, noise=privacy.noise, quantile=privacy.clip_quantile, delta=privacy.delta
    )


def accounted(method: Method | None) -> Accounted | None:
    """Find what counts the budget of a method, within what may be around it; None where nothing does."""
    while method is not None and not isinstance(method, Accounted):
        method = method.inner
    return method
