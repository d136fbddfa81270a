"""Launch thresholds and reports through a real mesh."""

from allroads.mesh.wire import model_pb2

from ..doubles.home_client import HomeClient, request
from ..doubles.processes import MeshProcesses


class ReportedClient(HomeClient):
    """A client that keeps what tiers report, and says when they are to launch."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.reports: list[list[model_pb2.TierReport]] = []

    async def wish(self, num_visits: int, flush_us: int) -> None:
        launch = model_pb2.LaunchThreshold(tier=1, num_visits=num_visits, flush_timeout_us=flush_us)
        await self._call.write(model_pb2.GenerateRequest(launches=[launch]))

    def _take(self, response: model_pb2.GenerateResponse) -> None:
        self.reports.append(list(response.reports))
        super()._take(response)


async def test_greedy_output_is_the_same_and_the_tier_says_how_it_launched(mesh: MeshProcesses) -> None:
    prompts = [[5 + index, 9, 40 + index] for index in range(8)]
    answers = []
    async with ReportedClient(mesh.settings.slm.address) as client:
        for num_visits in (1, 4):
            await client.wish(num_visits, 20_000)
            client.reports.clear()
            replies = await client.answer(
                *(request(prompt, "ahead-alternating", max_tokens=16, ignore_eos=True) for prompt in prompts)
            )
            answers.append([(reply.token_ids, reply.tiers) for reply in replies])
    assert answers[0] == answers[1]
    home, large = ([reports[tier] for reports in client.reports] for tier in (0, 1))
    assert [sum(report.num_tokens for report in reports) for reports in (home, large)] == [64, 64]
    assert large[-1].threshold == 4
    assert sum(report.num_visits for report in large) == 64
    assert sum(report.num_full_launches + report.num_last_launches + report.num_flushed_launches for report in large)
    assert 0 < sum(report.there_us for report in large) <= sum(report.away_us for report in large)
