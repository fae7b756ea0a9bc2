"""openmined-psi between two processes, one core each; run by psi.py in an environment of its own.

Usage: openmined.py IDS SHARED. Prints one JSON line. The client learns whom both share; the server
is not told, so this does a little less than an alignment.
"""

import json
import os
import resource
import socket
import struct
import sys
import time

import private_set_intersection.python as psi

FALSE_POSITIVES = 1e-9


def send(sock: socket.socket, blob: bytes) -> int:
    sock.sendall(struct.pack("<Q", len(blob)) + blob)
    return len(blob)


def receive(sock: socket.socket) -> bytes:
    size = struct.unpack("<Q", sock.recv(8, socket.MSG_WAITALL))[0]
    return sock.recv(size, socket.MSG_WAITALL)


def main() -> None:
    n, shared = int(sys.argv[1]), int(sys.argv[2])
    ours, theirs = socket.socketpair()
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    pid = os.fork()
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[1 if pid == 0 else 0]})
    first = n - shared if pid == 0 else 0
    ids = [f"user-{i:013d}" for i in range(first, first + n)]
    if pid == 0:
        receive(theirs)
        server = psi.server.CreateWithNewKey(True)
        setup = server.CreateSetupMessage(FALSE_POSITIVES, n, ids, psi.DataStructure.GCS)
        request = psi.Request()
        request.ParseFromString(receive(theirs))
        send(theirs, setup.SerializeToString())
        send(theirs, server.ProcessRequest(request).SerializeToString())
        receive(theirs)
        os._exit(0)
    time.sleep(1)  # the server has made its ids by now
    began = time.perf_counter()
    send(ours, b"go")
    client = psi.client.CreateWithNewKey(True)
    sent = send(ours, client.CreateRequest(ids).SerializeToString())
    setup, response = psi.ServerSetup(), psi.Response()
    for message in (setup, response):
        blob = receive(ours)
        sent += len(blob)
        message.ParseFromString(blob)
    found = client.GetIntersection(setup, response)
    seconds = time.perf_counter() - began
    send(ours, b"done")
    os.waitpid(pid, 0)
    assert len(found) == shared, f"{len(found)} of {shared} found"
    cpu = [
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ]
    print(json.dumps({"seconds": seconds, "megabytes": sent / 1e6, "cpu_seconds": cpu}))


main()
