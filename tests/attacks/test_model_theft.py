"""A copy of a client's model says of public samples what the client said, in whatever form it came."""

import pytest
import torch
from torch.nn import functional as F

from rayfed_ssl.analysis.audit import view
from rayfed_ssl.attacks.encoder_mi import EncoderMI
from rayfed_ssl.attacks.model_theft import attacked, embed
from rayfed_ssl.engine.federation import Federation
from tests.small_recipes import small


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ("method.upload=representations", "representations"),
        pytest.param("method.upload=similarities", "similarities", marks=pytest.mark.slow),
        ("method.upload=similarities method.keep=0.99", "similarities"),
    ],
)
def test_a_copy_says_what_the_client_said(settings: str, kind: str):
    federation = Federation.open(small("flesd", "public=fraction:0.3", *settings.split()))
    download = federation.method.download(federation.init_server(), 0)
    upload = federation.update_client(1, 0, download, None).upload
    seen, _ = view(federation, 1, 0, download, upload)
    assert EncoderMI().target(seen) == kind
    assert seen.public is not None
    said = federation.method.unpack(upload)
    images = seen.task.plain(seen.public.batch(torch.arange(len(seen.public))))
    copied = F.normalize(embed(seen, attacked(seen), images)[1], dim=1)
    apart = ~torch.eye(len(said), dtype=torch.bool)
    far = (copied @ copied.T - said)[apart].square().mean()
    assert far < 0.5 * said[apart].var()
