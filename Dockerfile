# The course image: a compiler, Python, torch (a CPU build) and the kit with its commands gpt149 and gpt149-grader.
#     docker build --tag gpt149 .
#     docker run --rm --interactive --tty --volume "$PWD:/home/ubuntu/work" gpt149        # a student's shell
#     docker run --rm --volume "$PWD:/home/ubuntu/work" --cpus 4 --memory 8g gpt149 gpt149-grader run submissions --out results
#
# What the sandbox needs of a container (docs/architecture.md, "Sandbox"; `gpt149-grader doctor` names the tier):
# - Nothing, for tier B: Landlock and a system-call filter, on a host with Linux 5.13 or newer. Docker allows both.
# - For tier A, own namespaces: `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`, which lets
#   bubblewrap make them. On Ubuntu 24.04 hosts also `sysctl kernel.apparmor_restrict_unprivileged_userns=0`.
# - Never `--privileged`, and no socket of Docker inside: a kernel that breaks out would own the host.
# - Times need cores of their own: `--cpus` with at least 2, and no other work on them.
FROM ubuntu:24.04 AS wheel
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates git python3-venv
COPY . /src
# The wheel names the commit that it was made from.
RUN git config --global --add safe.directory /src \
    && python3 -m venv /build && /build/bin/pip wheel --quiet --no-deps --wheel-dir /wheels /src

FROM ubuntu:24.04
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
       bubblewrap ca-certificates g++ git make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/gpt149/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt /opt/
COPY --from=wheel /wheels /opt/wheels
RUN python3 -m venv /opt/gpt149 \
    && pip install --quiet --no-cache-dir --constraint /opt/constraints.txt --extra-index-url "$TORCH_INDEX" "$TORCH" \
    && pip install --quiet --no-cache-dir --constraint /opt/constraints.txt "$(echo /opt/wheels/gpt149-*.whl)[report,watch]"
USER ubuntu
WORKDIR /home/ubuntu/work
# Once for all students: the reference, the kit's own programs and the precompiled headers, in ~/.cache/gpt149.
RUN python -m grader.staff.platforms.container --torch
CMD ["bash"]
