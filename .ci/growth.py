#!/usr/bin/env python3
"""Whether processes grew: python3 .ci/growth.py FILE.csv, as .ci/long writes it (second,pid,name,anon_kib,files).

The first half of a process's life is its warm-up: caches fill. Of the second half the means of its first and last third are
compared, for one sample says little. Memory may grow by 1 % an hour, or by NOISE_KIB in all, which an allocator's own
rhythm makes; open files by FILES_NOISE, since a log has a file more or less. Exit 0: flat, 1: something grew, 3: too few samples to say."""

import csv
import sys
from collections import defaultdict

GROWTH_PER_HOUR = 0.01
NOISE_KIB = 3 * 1024
FILES_NOISE = 8
SAMPLES_MIN = 24


def mean(numbers):
    return sum(numbers) / len(numbers)


def main(path):
    lives = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            lives[row["name"], int(row["pid"])].append((int(row["second"]), int(row["anon_kib"]), int(row["files"])))
    grew, judged = False, 0
    for (name, pid), samples in sorted(lives.items()):
        warm = samples[len(samples) // 2 :]
        if len(warm) < SAMPLES_MIN:
            continue
        judged += 1
        third = len(warm) // 3
        first, last = warm[:third], warm[-third:]
        hours = (mean([at for at, _, _ in last]) - mean([at for at, _, _ in first])) / 3600
        from_kib, to_kib = mean([kib for _, kib, _ in first]), mean([kib for _, kib, _ in last])
        from_files, to_files = mean([files for _, _, files in first]), mean([files for _, _, files in last])
        allowed_kib = max(from_kib * GROWTH_PER_HOUR * hours, NOISE_KIB)
        is_bad = to_kib - from_kib > allowed_kib or to_files - from_files > FILES_NOISE
        grew |= is_bad
        print(
            f"{name} {pid}: {from_kib / 1024:.1f} to {to_kib / 1024:.1f} MiB, files {from_files:.0f} to {to_files:.0f},"
            f" within {hours * 60:.0f} minutes after as many and more of warm-up{': GREW' if is_bad else ''}"
        )
    if not judged:
        print(f"{path}: no process has {2 * SAMPLES_MIN} samples")
        return 3
    return int(grew)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
