"""The method that a run runs: the configuration's, within what `privacy.*` puts around it."""

from collections.abc import Sequence

from rayfed_ssl.config.privacy import Privacy
from rayfed_ssl.method import Method
from rayfed_ssl.privacy.accounting import Accounted
from rayfed_ssl.privacy.client_level import ClientLevel
from rayfed_ssl.privacy.sample_level import SampleLevel
from rayfed_ssl.privacy.secure_sum import SecureSum


def protected(method: Method, privacy: Privacy, sizes: Sequence[int]) -> Method:
    """Put around a method what the configuration asks for.

    Args:
        method: The configuration's.
        privacy: What is asked for.
        sizes: Numbers of samples of the largest clients, as many as take part in a round.
    """
    if privacy.clip is not None and privacy.level == "sample":
        assert isinstance(privacy.clip, float), "the section refuses others"
        return SampleLevel(method=method, clip=privacy.clip, noise=privacy.noise, delta=privacy.delta)
    if privacy.clip is not None:
        return ClientLevel(
            method=method, clip=privacy.clip, noise=privacy.noise, quantile=privacy.clip_quantile, delta=privacy.delta
        )
    if privacy.secure_sum:
        return SecureSum(method=method, protocol=privacy.secure_protocol, cohort=len(sizes), samples=sum(sizes))
    return method


def accounted(method: Method | None) -> Accounted | None:
    """Find what counts the budget of a method, within what may be around it; None where nothing does."""
    while method is not None and not isinstance(method, Accounted):
        method = method.inner
    return method
