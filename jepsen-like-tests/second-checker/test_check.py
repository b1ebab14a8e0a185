#!/usr/bin/env python3
"""The second judge accepts a good history and names what was planted in each bad one.

    python3 -m unittest discover -s jepsen-like-tests/second-checker
"""

import copy
import json
import os
import random
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check  # noqa: E402

QUEUE = {"topic": "chaos", "queue": 0}


def send(kind, message, offset=None, process="producer-1", term=1, leader=1):
    value = {"message_id": message}
    if offset is not None:
        value["ack"] = {"queue": QUEUE, "offset": offset, "term": term, "leader": leader}
    return {"process": process, "type": kind, "f": "send", "value": value}


def receive(who, *places, attempt=1):
    deliveries = [
        {"consumer": who, "queue": QUEUE, "offset": offset, "message_id": message, "attempt": attempt}
        for offset, message in places
    ]
    return {"process": who, "type": "ok", "f": "receive", "value": {"deliveries": deliveries}}


def dump(replica, digest="d", applied=9):
    value = {"replica": replica, "applied_index": applied, "digest": digest, "queues": []}
    return {"process": "harness", "type": "ok", "f": "dump", "value": value}


def leader(term, who):
    return {"process": "observer", "type": "ok", "f": "leader", "value": {"term": term, "leader": who}}


def task(kind, what, process="clerk-1", **value):
    return {"process": process, "type": kind, "f": "task", "value": {"task": what, **value}}


def done(what, process="clerk-1", **value):
    return [task("invoke", what, process, **value), task("ok", what, process, **value)]


def got(who, topic, *places, attempt=1):
    event = receive(who, *places, attempt=attempt)
    for one in event["value"]["deliveries"]:
        one["queue"] = {"topic": topic, "queue": 0}
    return event


def half(message):
    """A half message, of which nobody knows where it will stand."""
    return [send("invoke", message, process="teller-1")] + done("prepare", "teller-1", message_id=message) + [
        send("info", message, process="teller-1")
    ]


def good():
    return [
        leader(1, 1),
        send("invoke", "1-0"),
        send("ok", "1-0", 0),
        send("invoke", "1-1"),
        send("ok", "1-1", 1),
        send("invoke", "1-2"),
        send("fail", "1-2"),
        send("invoke", "1-3"),
        send("info", "1-3"),
        receive("consumer-1", (0, "1-0"), (1, "1-1")),
        receive("drain-1", (0, "1-0")),
        receive("drain-2", (1, "1-1")),
        dump(1),
        dump(2),
        dump(3),
    ]


RECORD = {
    "settings": {"seed": 1, "faults": ["kill-leader"], "duration_ms": 1000, "rate": 2, "replicas": 3},
    "faults": [{"number": 1, "kind": "kill-leader", "targets": [1], "started_ns": 1, "struck_ns": 1, "healed_ns": 2}],
    "skipped": [],
    "incidents": [],
    "load_ended_ns": 200,
}


class SecondJudge(unittest.TestCase):
    def judge(self, events, record=None, report=None):
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "history.jsonl"), "w", encoding="utf-8") as file:
                for index, event in enumerate(events):
                    file.write(json.dumps({"index": index, "time": index * 10, "wall_ms": 0, **event}) + "\n")
            with open(os.path.join(directory, "run.json"), "w", encoding="utf-8") as file:
                json.dump(record or RECORD, file)
            if report:
                with open(os.path.join(directory, "report.json"), "w", encoding="utf-8") as file:
                    json.dump({"conclusion": report}, file)
                stdout, stderr = sys.stdout, sys.stderr
                with open(os.devnull, "w", encoding="utf-8") as nowhere:
                    sys.stdout = sys.stderr = nowhere
                    try:
                        return check.main([directory])
                    finally:
                        sys.stdout, sys.stderr = stdout, stderr
            return check.judge(directory)

    def assert_found(self, events, *names):
        conclusion, findings, _, _ = self.judge(events)
        self.assertEqual(conclusion, "broken")
        for name in names:
            self.assertIn(name, findings)

    def test_a_good_history_is_good(self):
        self.assertEqual(self.judge(good()), ("good", {}, [], []))
        self.assertEqual(self.judge(good(), report="good"), 0)

    def test_an_unknown_send_that_arrives_and_a_redelivery_are_allowed(self):
        events = good()
        events[9] = receive("consumer-1", (0, "1-0"), (1, "1-1"), (2, "1-3"))
        events.insert(10, receive("consumer-1", (0, "1-0"), attempt=2))
        events.append(receive("drain-1", (2, "1-3")))
        self.assertEqual(self.judge(events)[0], "good")

    def test_lost_at_the_end_and_lost_to_consumers(self):
        events = good()
        del events[11]
        self.assert_found(events, "no-lost-ack", "nothing-taken-back")
        events = good()
        events[9] = receive("consumer-1", (0, "1-0"))
        self.assert_found(events, "no-lost-ack")

    def test_found_elsewhere_than_acknowledged(self):
        events = good()
        events[4] = send("ok", "1-1", 7)
        self.assert_found(events, "no-lost-ack", "nothing-taken-back")

    def test_what_was_let_go_counts_if_a_consumer_saw_it_before(self):
        def begins(offset):
            value = {"queues": [{"queue": QUEUE, "offset": offset}]}
            return [{"process": "drain-chaos", "type": "ok", "f": "begins", "value": value}]

        sent = [send("invoke", "1-5"), send("ok", "1-5", 2)]
        seen = [receive("consumer-1", (2, "1-5"))]
        self.assertEqual(self.judge(good() + sent + seen + begins(3))[0], "good")
        self.assert_found(good() + sent + seen + begins(2), "no-lost-ack", "nothing-taken-back")
        self.assert_found(good() + sent + begins(3), "no-lost-ack")

    def test_phantoms(self):
        for message in ("1-2", "never-sent"):
            self.assert_found(good() + [receive("drain-1", (2, message))], "no-phantom")

    def test_a_message_at_two_places(self):
        self.assert_found(good() + [receive("drain-1", (2, "1-1"))], "no-duplicate")

    def test_a_hole(self):
        self.assert_found(good() + [receive("drain-1", (3, "1-3"))], "dense-offsets")

    def test_out_of_order(self):
        events = good()
        events[9] = receive("consumer-1", (1, "1-1"), (0, "1-0"))
        self.assert_found(events, "order-per-queue")

    def test_message_groups_out_of_order(self):
        fifo = {"topic": "chaos-fifo", "queue": 0}

        def of_fifo(event):
            text = json.dumps(event).replace(json.dumps(QUEUE), json.dumps(fifo))
            return json.loads(text)

        first = [of_fifo(e) for e in (send("invoke", "1-5"), send("ok", "1-5", 0), send("invoke", "1-6"), send("ok", "1-6", 1))]
        drained = [of_fifo(receive("drain-3", (0, "1-5"), (1, "1-6")))]
        in_order = [of_fifo(receive("consumer-1", (0, "1-5"))), of_fifo(receive("consumer-2", (1, "1-6")))]
        self.assertEqual(self.judge(good() + first + drained + in_order)[0], "good")
        self.assert_found(good() + first + drained + in_order[::-1], "order-per-message-group")

    def test_offsets_against_time(self):
        events = good()
        events[2], events[4] = send("ok", "1-0", 1), send("ok", "1-1", 0)
        self.assert_found(events, "real-time-order")

    def test_two_values_at_one_offset(self):
        self.assert_found(good() + [receive("consumer-2", (1, "1-3"))], "nothing-taken-back")

    def test_replicas_that_differ(self):
        self.assert_found(good()[:-1] + [dump(3, digest="other")], "replicas-agree")
        self.assert_found(good()[:-1] + [dump(3, applied=8)], "replicas-agree")

    def test_two_leaders_of_a_term(self):
        self.assert_found([leader(1, 2)] + good(), "one-leader-per-term")
        events = good()
        events[2] = send("ok", "1-0", 0, leader=3)
        self.assert_found(events, "one-leader-per-term")

    def test_a_message_in_two_hands(self):
        asks = {"process": "consumer-2", "type": "invoke", "f": "receive", "value": {"deliveries": []}}
        shared = good()
        shared.insert(10, receive("consumer-2", (0, "1-0")))
        self.assert_found(shared, "one-holder")
        early = [send("invoke", "1-9"), send("ok", "1-9", 2), asks, receive("consumer-2", (2, "1-9"))]
        early += [receive("consumer-1", (2, "1-9"), attempt=2), send("invoke", "1-8"), send("ok", "1-8", 3)]
        early += [receive("consumer-1", (3, "1-8")), receive("drain-1", (2, "1-9"), (3, "1-8"))]
        self.assert_found(good() + early, "one-holder")
        # Another leader counted meanwhile.
        early[6] = send("ok", "1-8", 3, term=2)
        self.assertEqual(self.judge(good() + early)[0], "good")

    def test_transactions(self):
        def end(commit, kind="ok"):
            value = {"message_id": "1-9", "commit": commit}
            return [task("invoke", "end-transaction", "teller-1", **value), task(kind, "end-transaction", "teller-1", **value)]

        seen = [got(who, "chaos-transactions", (0, "1-9")) for who in ("consumer-1", "drain-9")]
        begun = good() + half("1-9")
        self.assertEqual(self.judge(begun + end(True) + end(True) + seen)[0], "good")
        self.assertEqual(self.judge(begun + end(False))[0], "good")
        self.assertEqual(self.judge(begun + end(False) + end(True, "info") + [])[0], "good")
        for wrong in (seen, seen + end(True), end(False) + seen, end(True), end(True) + end(False) + seen):
            self.assert_found(begun + wrong, "all-or-nothing")
        self.assert_found(begun + end(False) + end(True, "info") + seen, "all-or-nothing")

    def test_delayed_messages(self):
        def delayed(due_ms):
            begun = good() + [send("invoke", "1-9", process="p"), *done("delay", message_id="1-9", due_ns=due_ms * 10**6)]
            return begun + [send("info", "1-9", process="p")]

        seen = [got(who, "chaos-delays", (0, "1-9")) for who in ("consumer-1", "drain-9")]
        self.assertEqual(self.judge(delayed(0) + seen)[0], "good")
        self.assert_found(delayed(0), "never-early")
        self.assert_found(delayed(100) + seen, "never-early")
        record = copy.deepcopy(RECORD)
        record["faults"][0]["kind"] = "clock-jump"
        self.assertEqual(self.judge(delayed(100) + seen, record)[0], "good")

    def test_dead_letters(self):
        queue = {"topic": "chaos-doomed", "queue": 0}
        ack = {"message_id": "1-9", "ack": {"queue": queue, "offset": 0, "term": 1, "leader": 1}}
        sent = [send("invoke", "1-9"), {"process": "producer-1", "type": "ok", "f": "send", "value": ack}]
        drained = [got("drain-9", "chaos-doomed", (0, "1-9"))]
        letter = [got("drain-dead-letters", "%DLQ%chaos-doomed", (0, "1-9"))]
        deliveries = receive("d", (0, "1-9"))["value"]["deliveries"]
        self.assertEqual(self.judge(good() + sent + drained + letter)[0], "good")
        self.assertEqual(self.judge(good() + sent + drained + done("acknowledge", deliveries=deliveries))[0], "good")
        self.assert_found(good() + sent + drained, "dead-letters-complete")
        often = [got("d", "chaos-doomed", (0, "1-9"), attempt=3)]
        self.assert_found(good() + sent + drained + letter + often, "dead-letters-complete")

    def test_registers(self):
        def write(value):
            return done("set-register", register="r", value=value)

        def read(value):
            return done("read-register", register="r", **({} if value is None else {"value": value}))

        unknown = [task("invoke", "set-register", "clerk-2", register="r", value=3)]
        right = (read(None) + write(1) + read(1), unknown + write(1) + read(1) + read(3) + read(3), unknown + read(None))
        for events in right:
            self.assertEqual(self.judge(good() + events)[0], "good")
        never = [task("invoke", "set-register", register="r", value=3), task("fail", "set-register", register="r", value=3)]
        wrong = (
            read(9), read(9) + write(9), write(1) + read(None), write(1) + write(2) + read(1), write(1) + write(1),
            unknown + write(1) + read(3) + read(1) + read(3), never + read(3),
        )
        for events in wrong:
            self.assert_found(good() + events, "linearizable-registers")

    def test_registers_as_every_order_says(self):
        """Small histories at random: it finds an order where trying them all does."""
        def has_order(calls, now):
            must = [call for call in calls if call[4] == "ok"]
            if not must:
                return True
            for at, (begun, _, is_write, value, _) in enumerate(calls):
                if any(other[1] < begun for other in must):
                    continue
                rest = calls[:at] + calls[at + 1 :]
                if (is_write and has_order(rest, value)) or (not is_write and value == now and has_order(rest, now)):
                    return True
            return False

        draw, seen = random.Random(7), set()
        for _ in range(4000):
            calls = []
            for number in range(draw.randint(1, 6)):
                begun, is_write = draw.randint(0, 12), draw.random() < 0.5
                value = number + 1 if is_write else draw.choice([None, 1, 2, 3, 4])
                outcome = draw.choice(["ok", "ok", "ok", "info", "fail"])
                calls.append((begun, begun + draw.randint(0, 8), is_write, value, outcome))
            run = check.Run()
            for begun, ended, is_write, value, outcome in calls:
                told = {"register": "r", "value": value}
                run.tasks.append(["set-register" if is_write else "read-register", told, begun, ended, outcome])
            possible = [call for call in calls if call[4] == "ok" or (call[4] == "info" and call[2])]
            is_found = not list(check.linearizable_registers(run))
            self.assertEqual(is_found, has_order(possible, None), calls)
            seen.add(is_found)
        self.assertEqual(seen, {True, False})

    def test_parts_that_were_never_done_prove_nothing(self):
        tried = [task(kind, "set-register", register="r", value=n) for n in range(10) for kind in ("invoke", "fail")]
        self.assertEqual(self.judge(good() + tried)[0], "void")
        self.assertEqual(self.judge(good() + tried[2:])[0], "good")

    def test_what_was_answered_early_may_be_gone_and_is_counted(self):
        early = [send("invoke", "1-9"), send("ok", "1-9", 2)]
        early[1]["value"]["ack"]["early"] = True
        self.assertEqual(self.judge(good() + early)[0], "good")
        record = {**RECORD, "kept_aside": 0}
        self.assertEqual(self.judge(good() + early, record)[0], "broken")
        self.assertEqual(self.judge(good() + early, {**record, "kept_aside": 1})[0], "good")
        gone = copy.deepcopy(record)
        gone["faults"][0]["kind"] = "tail-then-disk"
        self.assertEqual(self.judge(good() + early, gone)[0], "good", "nobody is left to count")
        self.assert_found(good() + early + [receive("consumer-1", (2, "1-9"))], "no-lost-ack")

    def test_incidents_and_silent_replicas(self):
        record = copy.deepcopy(RECORD)
        record["incidents"] = ["broker 2 ended by itself"]
        self.assertEqual(self.judge(good(), record)[0], "broken")
        self.assertEqual(self.judge(good()[:-1])[0], "broken")

    def test_void_runs_are_not_good(self):
        for path, value in (("healed_ns", 10**9), ("problem", "refused"), ("disturbed", 0)):
            record = copy.deepcopy(RECORD)
            record["faults"][0][path] = value
            self.assertEqual(self.judge(good(), record)[0], "void", path)
        record = copy.deepcopy(RECORD)
        record["settings"]["rate"] = 1000
        self.assertEqual(self.judge(good(), record)[0], "void")
        record = copy.deepcopy(RECORD)
        record["settings"]["faults"], record["faults"] = [], []
        self.assertEqual(self.judge(good(), record)[0], "good")

    def test_a_passed_limit_is_an_incident(self):
        for name, value, right in (("gap_ms_max", 0, False), ("gap_ms_max", 1, True), ("elections_max", 0, True)):
            record = copy.deepcopy(RECORD)
            record["settings"]["limits"] = {name: value}
            self.assertEqual(self.judge(good(), record)[0], "good" if right else "broken", name)
        record["settings"]["limits"] = {"lead_moves_ms_max": 0}
        self.assertEqual(self.judge(good() + [leader(2, 2)], record)[0], "good")
        record["faults"][0]["targets"] = [1]
        record["load_ended_ns"] = 2 * 10**6
        self.assertEqual(self.judge(good(), record)[0], "broken")
        record = copy.deepcopy(RECORD)
        record["settings"]["limits"] = {"elections_max": 0}
        self.assertEqual(self.judge([leader(2, 2)] + good(), record)[0], "broken")
        late = copy.deepcopy(record)
        late["load_ended_ns"] = 5
        self.assertEqual(self.judge(good() + [leader(2, 2)], late)[0], "good")
        for held, right in ((9, True), (10, False)):
            record = {**copy.deepcopy(RECORD), "data_bytes": held}
            record["settings"]["limits"] = {"data_bytes_max": 9}
            self.assertEqual(self.judge(good(), record)[0], "good" if right else "broken", held)

    def test_disagreement_with_the_first_judge_is_told(self):
        self.assertEqual(self.judge(good(), report="broken"), 4)
        self.assertEqual(self.judge(good()[:-1], report="broken"), 1)

    def test_histories_that_contradict_themselves_are_refused(self):
        for events in (
            [send("ok", "a", 0)],
            [send("invoke", "a"), send("invoke", "b")],
            [send("invoke", "a"), send("ok", "a")],
            [{"process": "p", "type": "ok", "f": "receive", "value": {}}],
        ):
            with self.assertRaises(check.Unusable):
                self.judge(events)


if __name__ == "__main__":
    unittest.main()
