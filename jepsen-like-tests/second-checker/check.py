#!/usr/bin/env python3
"""A second judge of a chaos run, written without looking at the first one's algorithms.

    check.py DIR [--json]

DIR is a run's folder (history.jsonl, run.json). Everything is decided here anew from these two files, by sorting and
merging; nothing is taken from report.json but the first judge's conclusion, with which this one must agree.

Exit codes: 0 every promise was kept, 1 one was not, 3 the run proves nothing, 2 the files cannot be used,
4 the first judge (report.json) came to another conclusion.
"""

import json
import os
import sys
from itertools import groupby

SHOWN = 20
NEVER = float("inf")
# Fewer acknowledged messages than one in so many of what should have been sent prove nothing.
ACKED_ONE_IN = 20
# A part of the load that was begun this often, and never once done, proves nothing.
BEGUN_MIN = 10
# A topic whose one group gives most messages up, after so many deliveries, and how topics of dead letters begin.
DOOMED, DOOMED_DELIVERIES_MAX, DEAD_LETTERS = "chaos-doomed", 2, "%DLQ%"
# Faults after which log time may be ahead of time, and by how much it may be else.
WRONG_CLOCKS, CLOCKS_WRONG_NS = {"clock-jump", "clock-drift"}, 5 * 10**6
# So many orders of the calls under way to one register are kept in mind; beyond that nothing is decided.
ORDERS_MAX = 100_000
# A consumer has what it takes for 10 s of log time, which runs at most 5 % faster than time and counts milliseconds.
HELD_NS = (10_000 * 100 // 105 - 1) * 10**6
# Faults that may take what a replica had written: nobody is left to count what was answered early.
TAKE_WHAT_WAS_WRITTEN = {
    "power-loss-leader", "power-loss-follower", "power-loss-all", "disk-full-leader", "disk-full-follower", "disk-full-all",
    "read-only-disk", "dead-disk", "hung-disk", "flip-sealed", "flip-active", "torn-tail", "wipe-disk", "membership-churn",
    "lying-disk", "rewind", "amnesia", "tail-then-power", "tail-then-disk", "majority-gone", "only-disk-gone",
}


class Unusable(Exception):
    """The files contradict themselves or are not there."""


class Run:
    """What one history says, as flat lists of tuples."""

    def __init__(self):
        self.sends = []  # [id, process, invoked, completed, outcome, ack]
        self.seen = []  # (queue, offset, id, who, attempt, order)
        self.held = []  # (queue, offset, attempt, received, who, begun)
        self.asked = {}  # who -> when it began to ask for what it has not got yet
        self.looks = []  # (queue, offset, id, who)
        self.acked_at = []  # times, in order
        self.gone_early = set()  # ids that were answered before their commit, and are nowhere
        self.leaders = []  # (term, leader)
        self.terms = []  # (time, term)
        self.led = []  # (time, who)
        self.states = []  # (replica, applied, digest)
        self.tasks = []  # [what, value, begun, ended, outcome]
        self.dead = []  # ids among the dead letters
        self.came = []  # (id, received, who, attempt, topic) of what consumers and the last look got
        self.is_clock_wrong = False
        self.begins = {}  # queue -> its first offset at the end, where what is old was let go on purpose
        self.is_drained = None  # see was_drained


def queue_of(value):
    return (value["topic"], value["queue"])


def read(path):
    """Reads a history line by line and pairs each completion with its invocation."""
    run, pending, last_index = Run(), {}, -1
    try:
        lines = open(path, encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from error
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                event = json.loads(line)
                index, time, process = event["index"], event["time"], event["process"]
                kind, name, value = event["type"], event["f"], event["value"]
            except (ValueError, KeyError, TypeError) as error:
                raise Unusable(f"line {number} is no event: {error!r}") from error
            if index <= last_index:
                raise Unusable(f"line {number}: index {index} comes after {last_index}")
            last_index = index
            try:
                take(run, pending, number, time, process, kind, name, value)
            except (KeyError, TypeError) as error:
                raise Unusable(f"line {number}: a {name} without {error}") from error
    return run


def take(run, pending, number, time, process, kind, name, value):
    """Adds one event to the run."""
    if name == "send":
        message = value["message_id"]
        if kind == "invoke":
            if process in pending:
                raise Unusable(f"line {number}: {process} sends while another of its sends is open")
            send = [message, process, time, NEVER, "unknown", None]
            pending[process] = send
            run.sends.append(send)
            return
        send = pending.pop(process, None)
        if send is None or send[0] != message:
            raise Unusable(f"line {number}: {process} completes a send that it did not begin")
        send[3] = time
        if kind == "ok":
            if not value.get("ack"):
                raise Unusable(f"line {number}: an acknowledgement without a place")
            send[4], send[5] = "acked", value["ack"]
        elif kind == "fail":
            send[4] = "refused"
    elif name == "task":
        if kind == "invoke":
            task = [value["task"], value, time, NEVER, "info"]
            run.tasks.append(task)
            pending["task of " + process] = task
            return
        task = pending.pop("task of " + process, None)
        if task is None or task[0] != value["task"]:
            raise Unusable(f"line {number}: {process} ends a task that it did not begin")
        task[1], task[3], task[4] = value, time, kind
    elif name == "receive" and kind == "invoke":
        run.asked.setdefault(process, time)
    elif kind != "ok":
        return
    elif name == "receive":
        begun = run.asked.pop(process, None)
        for one in value["deliveries"]:
            if one["queue"]["topic"].startswith(DEAD_LETTERS):
                # It stands a second time, as it should.
                run.dead.append(one["message_id"])
                continue
            run.came.append((one["message_id"], time, one["consumer"], one.get("attempt", 1), one["queue"]["topic"]))
            if one["queue"]["topic"] != DOOMED:
                run.held.append((queue_of(one["queue"]), one["offset"], one.get("attempt", 1), time, one["consumer"], begun))
            place = (queue_of(one["queue"]), one["offset"], one["message_id"])
            run.seen.append(place + (one["consumer"], one.get("attempt", 1), len(run.seen)))
    elif name == "begins":
        for one in value["queues"]:
            run.begins[queue_of(one["queue"])] = one["offset"]
    elif name == "look":
        for one in value["sightings"]:
            run.looks.append((queue_of(one["queue"]), one["offset"], one["message_id"], one["consumer"]))
    elif name == "leader":
        run.leaders.append((value["term"], value["leader"]))
        run.terms.append((time, value["term"]))
        run.led.append((time, value["leader"]))
    elif name == "dump":
        run.states.append((value["replica"], value["applied_index"], value["digest"]))


# The promises. Each takes a run and yields a sentence for each time it was broken.


def is_final(who):
    """Whether a reader belongs to the last look at every queue."""
    return who.startswith("drain")


def final_content(run):
    """offset -> message of each queue, as the last look found it first, or as a consumer saw it before it was let go."""
    content = {}
    for queue, offset, message, who, _, _ in run.seen:
        if is_final(who) or offset < run.begins.get(queue, 0):
            content.setdefault(queue, {}).setdefault(offset, message)
    return content


def no_lost_ack(run):
    """What was acknowledged is found at its place, at the end and by the consumers that ran all the time."""
    acked = sorted((queue_of(s[5]["queue"]), s[5]["offset"], s[0]) for s in run.sends if s[4] == "acked")
    content = final_content(run)
    final = sorted((queue, offset, message) for queue, slots in content.items() for offset, message in slots.items())
    consumed = sorted({(queue, offset, message) for queue, offset, message, who, _, _ in run.seen if not is_final(who)})
    # What was given up after answers that got lost need not have come to anybody.
    kept = [place for place in acked if place[0][0] != DOOMED]
    for where, found, wanted in (("at the end", final, acked), ("among what consumers got", consumed, kept)):
        at = 0
        for place in wanted:
            while at < len(found) and found[at] < place:
                at += 1
            if at == len(found) or found[at] != place:
                (topic, queue), offset, message = place
                yield f"{message} was acknowledged at {topic}/{queue}@{offset} and is not there {where}"


def all_places(run):
    for queue, offset, message, _, _, _ in run.seen:
        yield message, queue, offset
    for queue, offset, message, _ in run.looks:
        yield message, queue, offset


def no_phantom(run):
    """What was seen had been sent, and its sender had not been told that it is not stored."""
    outcomes = {}
    for message, _, _, _, outcome, _ in run.sends:
        outcomes.setdefault(message, set()).add(outcome)
    for message in sorted({message for message, _, _ in all_places(run)}):
        outcome = outcomes.get(message)
        if outcome is None:
            yield f"{message} was seen and never sent"
        elif outcome == {"refused"}:
            yield f"{message} was seen though its sender had been told that it is not stored"


def no_duplicate(run):
    """A message stands at one place."""
    places = sorted(set(all_places(run)))
    for message, group in groupby(places, key=lambda place: place[0]):
        where = [f"{topic}/{queue}@{offset}" for _, (topic, queue), offset in group]
        if len(where) > 1:
            yield f"{message} stands at {', '.join(where)}"


def dense_offsets(run):
    """The offsets of a queue count from 0 without a hole."""
    for (topic, queue), slots in sorted(final_content(run).items()):
        for due, offset in enumerate(sorted(slots)):
            if offset != due:
                yield f"{topic}/{queue} goes on with {offset} where {due} is due"
                break


def order_per_queue(run):
    """First deliveries of a queue come to each consumer in the order of their offsets."""
    first = sorted((who, queue, order, offset, message) for queue, offset, message, who, attempt, order in run.seen if attempt <= 1)
    for (who, queue), group in groupby(first, key=lambda seen: seen[:2]):
        top, known = -1, set()
        for _, _, _, offset, message in group:
            if offset in known:
                continue
            known.add(offset)
            if offset < top:
                yield f"{who} got {message} at {queue[0]}/{queue[1]}@{offset} after {top}"
            top = max(top, offset)


def order_per_message_group(run):
    """What one sender sends to a FIFO topic stands in one queue in its order, and comes to consumers in it."""
    sender, acked = {}, {}
    for message, process, invoked, _, outcome, ack in run.sends:
        sender[message] = process
        if outcome == "acked" and ack["queue"]["topic"].endswith("-fifo"):
            acked.setdefault(process, []).append((invoked, queue_of(ack["queue"]), ack["offset"]))
    for process, places in sorted(acked.items()):
        places.sort()
        if len({queue for _, queue, _ in places}) > 1:
            yield f"message group {process} stands in more than one queue"
        elif any(later[2] <= earlier[2] for earlier, later in zip(places, places[1:])):
            yield f"the offsets of message group {process} are not in the order of sending"
    first = {}
    for queue, offset, message, who, _, order in run.seen:
        if queue[0].endswith("-fifo") and not is_final(who) and message in sender:
            first.setdefault((queue, offset), (order, sender[message], message, who))
    came = sorted((group, queue, order, offset, message, who) for (queue, offset), (order, group, message, who) in first.items())
    for (group, queue), members in groupby(came, key=lambda one: one[:2]):
        top = -1
        for _, _, _, offset, message, who in members:
            if offset < top:
                yield f"message group {group}: {who} got {message} at {offset} after {top} had come"
            top = max(top, offset)


def real_time_order(run):
    """Who is acknowledged before another begins has the lower offset."""
    marks = []
    for message, _, invoked, completed, outcome, ack in run.sends:
        if outcome == "acked":
            queue = queue_of(ack["queue"])
            # At equal times the beginning comes first: such two overlap.
            marks.append((queue, invoked, 0, ack["offset"], message))
            marks.append((queue, completed, 1, ack["offset"], message))
    marks.sort()
    for queue, group in groupby(marks, key=lambda mark: mark[0]):
        top = (-1, None)
        for _, _, is_end, offset, message in group:
            if is_end:
                top = max(top, (offset, message), key=lambda pair: pair[0])
            elif offset <= top[0]:
                yield f"{queue[0]}/{queue[1]}: {message} got {offset}, begun after {top[1]} had {top[0]}"


def replicas_agree(run):
    """All replicas have applied the same entries and hold the same."""
    if len({applied for _, applied, _ in run.states}) > 1:
        yield f"replicas stand at different entries: {sorted(state[:2] for state in run.states)}"
    for applied, group in groupby(sorted((a, d, r) for r, a, d in run.states), key=lambda state: state[0]):
        digests = {digest: replica for _, digest, replica in group}
        if len(digests) > 1:
            yield f"at entry {applied} replicas {sorted(digests.values())} have different digests"


def nothing_taken_back(run):
    """What anybody saw at an offset stays there."""
    claims = [(queue_of(s[5]["queue"]), s[5]["offset"], s[0], "the producer") for s in run.sends if s[4] == "acked"]
    claims += [(queue, offset, message, who) for queue, offset, message, who, _, _ in run.seen]
    claims += run.looks
    content = final_content(run)
    claims.sort(key=lambda claim: claim[:3])
    for (queue, offset), group in groupby(claims, key=lambda claim: claim[:2]):
        said = {message: who for _, _, message, who in group}
        place = f"{queue[0]}/{queue[1]}@{offset}"
        if len(said) > 1:
            yield f"at {place} were seen {sorted(said)}"
        elif content or run.sends:
            now = content.get(queue, {}).get(offset)
            if now not in said and was_drained(run):
                yield f"{next(iter(said))} was seen at {place}, at the end there is {now}"


def one_holder(run):
    """A delivery is one consumer's, and the next one comes when its time is over, as long as one leader counts it."""
    first_done, last_begun = {}, {}
    for _, _, invoked, completed, outcome, ack in run.sends:
        if outcome == "acked" and ack.get("term") is not None:
            term = ack["term"]
            first_done[term] = min(completed, first_done.get(term, NEVER))
            last_begun[term] = max(invoked, last_begun.get(term, -1))
    held = sorted((one for one in run.held if not is_final(one[4])), key=lambda one: one[:4])
    for (queue, offset), group in groupby(held, key=lambda one: one[:2]):
        before = None
        for _, _, attempt, received, who, begun in group:
            if before is not None:
                earlier, holder, since = before
                place = f"{queue[0]}/{queue[1]}@{offset}"
                if earlier == attempt and holder != who:
                    yield f"{who} and {holder} both got delivery {attempt} of {place}"
                elif earlier < attempt and since is not None and received - since < HELD_NS:
                    if any(done <= since and last_begun[term] >= received for term, done in first_done.items()):
                        yield f"{who} got {place} at most {(received - since) // 10**6} ms after {holder} had got it"
            before = attempt, who, begun


def one_leader_per_term(run):
    """In a term one replica leads."""
    acks = [(s[5].get("term"), s[5].get("leader")) for s in run.sends if s[4] == "acked"]
    said = sorted(set(run.leaders) | {ack for ack in acks if None not in ack})
    for term, group in groupby(said, key=lambda pair: pair[0]):
        leaders = [leader for _, leader in group]
        if len(leaders) > 1:
            yield f"term {term} was led by {leaders}"


def all_or_nothing(run):
    """A half message is seen after its commit was asked for, never after a rollback, and once committed stands in a queue."""
    marks, halves = [], set()
    for what, value, begun, ended, outcome in run.tasks:
        if what == "prepare":
            halves.add(value["message_id"])
        elif what == "end-transaction":
            halves.add(value["message_id"])
            asked, done = ("commit", "committed") if value["commit"] else ("rollback", "rolled back")
            marks.append((value["message_id"], begun, 0, asked))
            if outcome == "ok":
                marks.append((value["message_id"], ended, 1, done))
    marks += [(message, time, 2, who) for message, time, who, _, _ in run.came if message in halves]
    final = {message for slots in final_content(run).values() for message in slots.values()}
    marks.sort()
    for message, group in groupby(marks, key=lambda mark: mark[0]):
        story = [(kind, word) for _, _, kind, word in group]
        said = {word for kind, word in story if kind == 1}
        if said == {"committed", "rolled back"}:
            yield f"{message} was committed and rolled back, both acknowledged"
        if "committed" in said and was_drained(run) and message not in final:
            yield f"the commit of {message} was acknowledged, and it stands in no queue"
        is_asked = False
        for kind, word in story:
            is_asked |= (kind, word) == (0, "commit")
            if kind == 2 and not is_asked:
                yield f"{word} got the half message {message} before its commit was asked for"
            elif kind == 2 and said == {"rolled back"}:
                yield f"{word} got {message}, whose rollback was acknowledged"


def never_early(run):
    """A delayed message comes when it is due or later, and does come."""
    due = sorted((value["message_id"], value["due_ns"], outcome) for what, value, _, _, outcome in run.tasks if what == "delay")
    # Of each message the first time that a consumer got it.
    came = sorted((message, time) for message, time, who, _, _ in run.came if not is_final(who))
    final = sorted({message for slots in final_content(run).values() for message in slots.values()})
    at = stands = 0
    for message, due_ns, outcome in due:
        while at < len(came) and came[at][0] < message:
            at += 1
        while stands < len(final) and final[stands] < message:
            stands += 1
        if outcome == "ok" and was_drained(run) and (stands == len(final) or final[stands] != message):
            yield f"{message} was taken to come later, and stands in no queue"
        if at < len(came) and came[at][0] == message and not run.is_clock_wrong:
            early = due_ns - came[at][1] - CLOCKS_WRONG_NS
            if early >= 10**6:
                yield f"{message} came {early // 10**6} ms before it was due"


def dead_letters_complete(run):
    """What a group gives up stands among its dead letters, after as many deliveries as it allows."""
    ends = [(message, 0) for message in run.dead]
    for what, value, _, _, _ in run.tasks:
        if what == "acknowledge":
            ends += [(one["message_id"], 0) for one in value["deliveries"]]
    ends += [(s[0], 1) for s in run.sends if s[4] == "acked" and s[5]["queue"]["topic"] == DOOMED]
    if was_drained(run):
        for message, group in groupby(sorted(ends), key=lambda end: end[0]):
            if next(group)[1] == 1:
                yield f"{message} was neither acknowledged nor is it among the dead letters"
        for message, _, who, attempt, topic in run.came:
            if topic == DOOMED and attempt > DOOMED_DELIVERIES_MAX and not is_final(who):
                yield f"{message} was delivered a {attempt}th time, beyond what its group allows"


def explains(calls):
    """Whether some order of calls (begun, ended, is a write, value) to one register explains what was read: all orders of
    those under way are kept in mind from call to call. None: there are too many."""
    events = sorted([(call[0], 0, at) for at, call in enumerate(calls)] + [(call[1], 1, at) for at, call in enumerate(calls)])
    orders, under_way = {(None, frozenset())}, set()
    for _, is_end, at in events:
        if not is_end:
            under_way.add(at)
            continue
        # A call that ends took effect before, and those under way may have: in every order that the reads allow.
        reached, waiting = set(orders), list(orders)
        while waiting:
            now, done = waiting.pop()
            for other in under_way - done:
                _, _, is_write, value = calls[other]
                if is_write or value == now:
                    after = (value, done | {other})
                    if after not in reached:
                        reached.add(after)
                        waiting.append(after)
            if len(reached) > ORDERS_MAX:
                return None
        under_way.remove(at)
        orders = {(now, done - {at}) for now, done in reached if at in done}
        if not orders:
            return False
    return True


def linearizable_registers(run):
    """Each register behaves as one place that is written and read at one instant within each call."""
    registers = {}
    for what, value, begun, ended, outcome in run.tasks:
        if what == "set-register" and outcome != "fail":
            calls = registers.setdefault(value["register"], [])
            calls.append([begun, ended if outcome == "ok" else NEVER, True, value["value"]])
        elif what == "read-register" and outcome == "ok":
            registers.setdefault(value["register"], []).append([begun, ended, False, value.get("value")])
    for register, calls in sorted(registers.items()):
        written = [value for _, _, is_write, value in calls if is_write]
        if len(set(written)) < len(written):
            yield f"{register} was given the same value twice: such a history cannot be judged"
            continue
        first_read = {}
        for _, ended, is_write, value in calls:
            if not is_write:
                first_read[value] = min(ended, first_read.get(value, NEVER))
        for call in calls:
            # A write that nobody confirmed happened before its value was read; and if nobody read it, it need not have.
            if call[2]:
                call[1] = min(call[1], first_read.get(call[3], NEVER))
        calls = [call for call in calls if call[1] != NEVER]
        # A read that ends before its write begins is explained by nothing.
        if any(call[1] < call[0] for call in calls):
            yield f"{register}: a value was read before it was written"
            continue
        is_explained = explains(calls)
        if is_explained is None:
            yield f"{register}: more than {ORDERS_MAX} orders are possible, it cannot be judged"
        elif not is_explained:
            yield f"{register}: no order of its calls explains what was read"


PROMISES = {
    "no-lost-ack": no_lost_ack,
    "no-phantom": no_phantom,
    "no-duplicate": no_duplicate,
    "dense-offsets": dense_offsets,
    "order-per-queue": order_per_queue,
    "order-per-message-group": order_per_message_group,
    "real-time-order": real_time_order,
    "replicas-agree": replicas_agree,
    "nothing-taken-back": nothing_taken_back,
    "one-holder": one_holder,
    "one-leader-per-term": one_leader_per_term,
    "all-or-nothing": all_or_nothing,
    "never-early": never_early,
    "dead-letters-complete": dead_letters_complete,
    "linearizable-registers": linearizable_registers,
}


def was_drained(run):
    """Whether there was a last look. Only asked once all is read; every message asks again."""
    if run.is_drained is None:
        is_seen = any(is_final(who) for _, _, _, who, _, _ in run.seen)
        run.is_drained = is_seen or not any(s[4] == "acked" for s in run.sends)
    return run.is_drained


def void_reasons(run, record):
    """Why a run in which nothing was found could not have shown anything."""
    settings, faults = record["settings"], record["faults"]
    acked = run.acked_at
    due = settings["rate"] * settings["duration_ms"] // 1000
    if not acked:
        yield "nothing was acknowledged"
    elif len(acked) * ACKED_ONE_IN < due:
        yield f"only {len(acked)} messages of {due} were acknowledged"
    done = [fault for fault in faults if "problem" not in fault]
    if settings["faults"] or record.get("skipped"):
        if not done:
            yield "no fault was done"
        elif all(fault.get("disturbed") == 0 for fault in done):
            yield "no fault had any effect"
    if done and (not acked or acked[-1] <= max(fault["healed_ns"] for fault in done)):
        yield "nothing was acknowledged after the last fault was healed"


def idle_parts(run):
    """Parts of the load that were begun often, and never once done."""
    parts = (
        ("no transaction was committed", lambda what, value: what == "end-transaction" and value["commit"]),
        ("no delayed message was taken", lambda what, value: what == "delay"),
        ("no register was written", lambda what, value: what == "set-register"),
        ("no register was read", lambda what, value: what == "read-register"),
    )
    for reason, is_it in parts:
        outcomes = [outcome for what, value, _, _, outcome in run.tasks if is_it(what, value)]
        if len(outcomes) >= BEGUN_MIN and "ok" not in outcomes:
            yield f"{reason}, of {len(outcomes)} that were tried"


def outages(run, record):
    """Of each fault that was done: (longest silence until the next one, time from its healing to the next ack) in ns."""
    acked = run.acked_at
    done = [fault for fault in record["faults"] if "problem" not in fault]
    for at, fault in enumerate(done):
        start = fault["started_ns"]
        end = done[at + 1]["started_ns"] if at + 1 < len(done) else record["load_ended_ns"]
        end = max(end, start)
        inside = [ack for ack in acked if start < ack <= end]
        marks = [start, *inside, end]
        silence = max(after - before for before, after in zip(marks, marks[1:]))
        healed = [ack - fault["healed_ns"] for ack in inside if ack > fault["healed_ns"]]
        yield silence, (min(healed) if healed else None)


def lead_moves(run, record):
    """Of each fault that was done: milliseconds until a replica led that it had not struck."""
    for fault in record["faults"]:
        if "problem" in fault:
            continue
        start = fault["started_ns"]
        others = [time for time, who in run.led if time > start and who not in fault["targets"]]
        yield (min(others, default=record["load_ended_ns"]) - start) // 10**6


def passed_limits(run, record):
    """What a scenario demands beside the promises."""
    limits = record["settings"].get("limits", {})
    found = list(outages(run, record)) if limits else []
    silences = [-(-silence // 10**6) for silence, _ in found]
    healings = [-(-healing // 10**6) for _, healing in found if healing is not None]
    terms = [term for time, term in run.terms if time <= record["load_ended_ns"]]
    values = {
        "gap_ms_max": max(silences, default=0),
        "after_heal_ms_max": max(healings, default=0),
        "ends_max": sum("ended by itself" in note for fault in record["faults"] for note in fault.get("notes", [])),
        "elections_max": max(terms) - min(terms) if terms else 0,
        "lead_moves_ms_max": max(lead_moves(run, record), default=0),
        "data_bytes_max": record.get("data_bytes", 0),
    }
    for name, limit in limits.items():
        if values[name] > limit:
            yield f"{name} is {limit}, it was {values[name]}"


def incidents(run, record):
    """What went wrong beside the history."""
    yield from record["incidents"]
    kept = record.get("kept_aside")
    if kept is not None and len(run.gone_early) > kept:
        if not any(fault["kind"] in TAKE_WHAT_WAS_WRITTEN for fault in record["faults"]):
            yield f"{len(run.gone_early)} messages that were answered early are gone, the replicas know of {kept}"
    yield from passed_limits(run, record)
    replicas = record["settings"]["replicas"]
    if len(run.states) != replicas:
        yield f"only {len(run.states)} of {replicas} replicas tell their state at the end"
    if not was_drained(run):
        yield "nothing was read at the end"


def set_aside_early(run):
    """What was answered before its commit and stands nowhere, nor ever came to anybody, was promised to nobody."""
    stands = {message for _, _, message, _, _, _ in run.seen}
    for send in run.sends:
        if send[4] == "acked" and send[5].get("early") and send[0] not in stands:
            send[4] = "unknown"
            run.gone_early.add(send[0])


def judge(directory):
    """(conclusion, findings by promise, incidents, reasons why it is void)."""
    run = read(os.path.join(directory, "history.jsonl"))
    of_load = (send for send in run.sends if send[4] == "acked" and send[5]["queue"]["topic"] != DOOMED)
    run.acked_at = sorted(send[3] for send in of_load)
    if was_drained(run):
        set_aside_early(run)
    path = os.path.join(directory, "run.json")
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        void = list(void_reasons(run, record)) + list(idle_parts(run))
        run.is_clock_wrong = any("problem" not in fault and fault["kind"] in WRONG_CLOCKS for fault in record["faults"])
        wrong = list(incidents(run, record))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{path}: {error!r}") from error
    findings = {name: found for name, promise in PROMISES.items() if (found := list(promise(run)))}
    if not was_drained(run) and "no-lost-ack" in findings:
        # Without a last look nobody can say what is there; that is an incident already.
        findings.pop("no-lost-ack")
    if findings or wrong:
        return "broken", findings, wrong, void
    return ("void" if void else "good"), findings, wrong, void


def main(arguments):
    as_json = "--json" in arguments
    directories = [argument for argument in arguments if not argument.startswith("--")]
    if len(directories) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        conclusion, findings, wrong, void = judge(directories[0])
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        with open(os.path.join(directories[0], "report.json"), encoding="utf-8") as file:
            first = json.load(file)["conclusion"]
    except (OSError, ValueError, KeyError):
        first = None
    if as_json:
        account = {"conclusion": conclusion, "findings": findings, "incidents": wrong, "void": void, "first": first}
        print(json.dumps(account))
    else:
        for name, found in findings.items():
            for text in found[:SHOWN]:
                print(f"BROKEN: {name}: {text}")
            if len(found) > SHOWN:
                print(f"BROKEN: {name}: {len(found) - SHOWN} more")
        for text in wrong:
            print(f"WRONG: {text}")
        for text in void:
            print(f"VOID: {text}")
        print(f"second judge: {conclusion}" + ("" if first is None else f" (first judge: {first})"))
    if first is not None and first != conclusion:
        print("the two judges disagree", file=sys.stderr)
        return 4
    return {"good": 0, "broken": 1, "void": 3}[conclusion]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
