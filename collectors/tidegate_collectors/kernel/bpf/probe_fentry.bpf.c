// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/* A trial: whether this kernel lets functions be traced at their entry. Does nothing. */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";
TG_MARK_SOURCE;

SEC("fentry/do_exit")
int BPF_PROG(try_fentry, long code)
{
	return 0;
}
