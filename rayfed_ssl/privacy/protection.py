"""The method of a run inside of what its configuration protects it with."""

from collections.abc import Sequence

from rayfed_ssl.config.privacy import Privacy
from rayfed_ssl.method import Method
from rayfed_ssl.privacy.secure_sum import SecureSum


def protected(method: Method, privacy: Privacy, sizes: Sequence[int]) -> Method:
    """Wrap a method; `sizes` are the numbers of samples of the largest clients, as many as take part in a round."""
    if privacy.secure_sum:
        method = SecureSum(method=method, protocol=privacy.secure_protocol, cohort=len(sizes), samples=sum(sizes))
    return method
