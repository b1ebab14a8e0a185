"""Sends, receives and acks through the official RocketMQ 5.x Python client against a running Flotilla.

  python round_trip.py --endpoint 127.0.0.1:8081 --topic tour --group tour-readers [--messages 100] [--json]

The topic (NORMAL) and the group must exist. Exit code 0 only if every message that was acked to the
producer came back once with its body, tag, keys and properties, and an ack of each was taken.
"""
import argparse
import json
import os
import sys
import tempfile
import threading
import time
import uuid

# The client writes log files below the home folder when it is imported: give it one of our own.
os.environ["HOME"] = tempfile.mkdtemp(prefix="flotilla-python-client-")

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer  # noqa: E402

INVISIBLE_SECONDS = 20
POLL_SECONDS = 5


def bodies(count):
    """A mix a broker could trip over: text, non-ASCII, all byte values, and one of 70 KiB."""
    for i in range(count):
        if i % 10 == 3:
            yield bytes(range(256))
        elif i % 10 == 7:
            yield "größer ✓ 消息".encode() + str(i).encode()
        elif i == count // 2:
            yield os.urandom(70 * 1024)
        else:
            yield f"message {i}".encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default="127.0.0.1:8081", help="a broker's client address; several with ';'")
    parser.add_argument("--topic", default="tour")
    parser.add_argument("--group", default="tour-readers")
    parser.add_argument("--messages", type=int, default=100)
    parser.add_argument("--timeout", type=float, default=60, help="seconds for the whole run")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    options = parser.parse_args()
    deadline = time.monotonic() + options.timeout

    # A client call that never returns must not hang the caller for ever.
    watchdog = threading.Timer(options.timeout + 15, lambda: os._exit(3))
    watchdog.daemon = True
    watchdog.start()

    run = uuid.uuid4().hex[:12]
    configuration = ClientConfiguration(options.endpoint, Credentials())
    consumer = SimpleConsumer(
        configuration, options.group, {options.topic: FilterExpression()}, await_duration=POLL_SECONDS
    )
    consumer.startup()
    # The group has a position from its first poll on, wherever a new group starts.
    for old in consumer.receive(32, INVISIBLE_SECONDS) or []:
        consumer.ack(old)

    producer = Producer(configuration, (options.topic,))
    producer.startup()
    sent = {}
    for sequence, body in enumerate(bodies(options.messages)):
        message = Message()
        message.topic = options.topic
        message.body = body
        message.tag = f"tag-{sequence % 3}"
        message.keys = f"{run}-{sequence}"
        message.add_property("run", run)
        message.add_property("größe", "ja, auch das")
        receipt = producer.send(message)
        sent[receipt.message_id] = (sequence, body)
    print(f"sent {len(sent)} messages", file=sys.stderr)

    faults = []
    received = {}
    while len(received) < len(sent) and time.monotonic() < deadline:
        for message in consumer.receive(32, INVISIBLE_SECONDS) or []:
            properties = dict(message.properties or {})
            if properties.get("run") == run:
                expected = sent.get(message.message_id)
                if expected is None:
                    faults.append(f"phantom {message.message_id}")
                    continue
                sequence, body = expected
                if message.message_id in received:
                    faults.append(f"message {sequence} came twice")
                if bytes(message.body) != body:
                    faults.append(f"message {sequence}: body differs")
                if message.tag != f"tag-{sequence % 3}":
                    faults.append(f"message {sequence}: tag is {message.tag}")
                if list(message.keys) != [f"{run}-{sequence}"]:
                    faults.append(f"message {sequence}: keys are {list(message.keys)}")
                if properties.get("größe") != "ja, auch das":
                    faults.append(f"message {sequence}: properties are {properties}")
                received[message.message_id] = sequence
            consumer.ack(message)
    lost = sorted(sequence for message_id, (sequence, _) in sent.items() if message_id not in received)
    producer.shutdown()
    consumer.shutdown()

    ok = not lost and not faults
    result = {"ok": ok, "sent": len(sent), "received": len(received), "lost": lost[:20], "faults": faults[:20]}
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        print(f"received {len(received)} of {len(sent)}" + ("" if ok else f"; lost {lost[:20]}, faults {faults[:20]}"))
    sys.stdout.flush()
    os._exit(0 if ok else 1)


if __name__ == "__main__":
    main()
