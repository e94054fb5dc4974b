"""ResourceClaims as the API server has them, for preparing."""

from __future__ import annotations

from drakit.core.objects import ResourceClaim
from drakit.kit.claims.preparer import ClaimSourceError
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.wire.kube import CLAIMS, Client, KubeError, NotFoundError


class ApiClaimSource:
    """Reads claims from the API server, always fresh: a stale copy could be another claim's."""

    def __init__(self, client: Client, metrics: HostMetrics) -> None:
        self._client = client
        self._metrics = metrics

    async def get(self, namespace: str, name: str) -> ResourceClaim | None:
        """The claim as it is now, None when there is none; see ``ClaimSource``."""
        try:
            claim = (await self._client.get(CLAIMS, name, namespace=namespace)).typed
        except NotFoundError:
            self._metrics.contact("apiserver")
            return None
        except KubeError as error:
            raise ClaimSourceError(
                f"cannot read claim {namespace}/{name} from the API server: {error}"
            ) from error
        self._metrics.contact("apiserver")
        return claim
