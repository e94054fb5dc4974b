"""What a ResourceClaim means for one driver."""

from __future__ import annotations

import msgspec
import pytest

from drakit.core.objects import ConsumerReference, ObjectMeta, ResourceClaim, ResourceClaimStatus
from drakit.kit.claims.resource_claims import POD_CLAIM_NAME, claim_for
from drakit.kit.driver import RejectedError
from tests.kit.claimworld import DRIVER, config, resource_claim, result


def parameters(document, request):
    claim = claim_for(DRIVER, document, document.metadata.uid)
    (allocated,) = (a for a in claim.devices if a.request == request)
    return [c.parameters for c in allocated.config]


def test_only_this_drivers_results_in_their_order():
    results = (
        result("a", share="1"),
        result("b", driver="other.example.com"),
        result("c/big", share="2", admin_access=True),
    )
    claim = claim_for(DRIVER, resource_claim(results=results), "uid-claim")
    assert [(a.request, a.base_request, a.share_id) for a in claim.devices] == [
        ("a", "a", "1"),
        ("c/big", "c", "2"),
    ]
    assert [a.admin_access for a in claim.devices] == [False, True]


@pytest.mark.parametrize(
    ("requests", "applies"),
    [
        ((), True),
        (("req",), True),
        (("req/sub",), True),
        (("other", "req"), True),
        (("req/else",), False),
        (("other",), False),
        (("re",), False),
    ],
)
def test_which_requests_a_configuration_is_for(requests, applies):
    document = resource_claim(results=(result("req/sub"),), configs=(config({"a": 1}, requests),))
    assert parameters(document, "req/sub") == ([{"a": 1}] if applies else [])


def test_class_configuration_comes_before_the_claims_and_other_drivers_are_skipped():
    configs = (
        config("claim-1"),
        config("class-1", source="FromClass"),
        config("foreign", driver="other.example.com"),
        config("class-2", source="FromClass"),
        config("claim-2"),
    )
    document = resource_claim(results=(result("req"),), configs=configs)
    assert parameters(document, "req") == ["class-1", "class-2", "claim-1", "claim-2"]


def test_a_replaced_claim_is_rejected():
    with pytest.raises(RejectedError, match="was replaced"):
        claim_for(DRIVER, resource_claim(uid="new"), "old")


def test_an_unallocated_claim_is_rejected():
    document = ResourceClaim(metadata=ObjectMeta(name="c", namespace="n", uid="u"))
    with pytest.raises(RejectedError, match="n/c is not allocated"):
        claim_for(DRIVER, document, "u")


def test_a_claim_of_another_driver_is_rejected():
    document = resource_claim(results=(result("req", driver="other.example.com"),))
    with pytest.raises(RejectedError, match=f"no device of driver {DRIVER}"):
        claim_for(DRIVER, document, "uid-claim")


def test_pods_it_is_reserved_for_and_the_name_in_the_pod():
    document = resource_claim(annotations={POD_CLAIM_NAME: "cpus"}, pods=("p1", "p2"))
    group = ConsumerReference(api_group="scheduling.k8s.io", resource="podgroups", uid="g")
    status = msgspec.structs.replace(document.status, reserved_for=(*document.status.reserved_for, group))
    assert isinstance(status, ResourceClaimStatus)
    claim = claim_for(DRIVER, msgspec.structs.replace(document, status=status), "uid-claim")
    assert claim.consumers == ("p1", "p2")
    assert claim.pod_claim_name == "cpus"
