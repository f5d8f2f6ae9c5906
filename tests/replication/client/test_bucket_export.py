"""Export of buckets by an operator: controllers are asked again if that helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from cotswold.errors import MachineError
from cotswold.host import Token
from cotswold.replication.client.admin import AdminClient
from cotswold.wire import BucketChange, DiskStateReply, Group, Prepare
from cotswold.wire.messenger import AnyMessage

BUCKETS = tuple(f"run/{number:04d}" for number in range(20))
CHANGE = BucketChange((0,), (1,), (), (), (), (), (), 0, 0, None, None, 0)


class RecordingAdminClient(AdminClient):
    """An operator's client of a fake cluster: servers answer for the buckets that they lead."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1:1"], Token.new(), wait_seconds=0.0)
        self.primary = dict.fromkeys(BUCKETS, "server-a-0")
        self.answering = dict(self.primary)
        self.asked = 0

    def groups(self) -> dict[str, Group]:
        self.asked += 1
        self._groups = {each: Group(each, 1, primary) for each, primary in self.primary.items()}
        self.primary = dict(self.answering)  # as it is heard the next time
        return self._groups

    def _request_from_servers(
        self,
        servers: Mapping[str, str],
        questions: Callable[[str], Sequence[AnyMessage]],
        hear: Callable[[AnyMessage], None],
        is_over: Callable[[], bool],
    ) -> None:
        (server,) = servers
        (question,) = questions(server)
        bucket = str(vars(question)["bucket"])
        if self.answering.get(bucket) == server:
            hear(DiskStateReply(bucket, "", 0, 1, 7))
            hear(Prepare(bucket, 1, -1, 7, 7, CHANGE, ("x",), (b"1234",)))


@pytest.fixture
def asking() -> Iterator[RecordingAdminClient]:
    with RecordingAdminClient() as found:
        yield found


def test_controllers_are_asked_once_for_all_buckets(asking: RecordingAdminClient) -> None:
    assert [each.bucket for each in asking.export(BUCKETS)] == list(BUCKETS)
    assert asking.asked == 1


def test_where_a_primary_does_not_answer_another_is_asked_for(asking: RecordingAdminClient) -> None:
    asking._wait_seconds = 5.0
    asking.answering[BUCKETS[3]] = "server-a-1"
    assert len(list(asking.export(BUCKETS))) == len(BUCKETS)
    assert asking.asked == 2


def test_a_bucket_of_which_nobody_answers_or_that_is_gone_is_named(asking: RecordingAdminClient) -> None:
    asking.answering[BUCKETS[1]] = "nobody"
    asking.primary = dict.fromkeys(BUCKETS, "server-a-0")
    with pytest.raises(MachineError, match=f"no primary of {BUCKETS[1]}"):
        list(RecordingAdminClient.export(asking, BUCKETS[:2]))
    asking._wait_seconds = 5.0
    del asking.answering[BUCKETS[1]]
    with pytest.raises(MachineError, match=f"bucket {BUCKETS[1]} no longer exists"):
        list(asking.export(BUCKETS))
