// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/* A trial: whether this kernel lets a program decide at a security hook. Always allows. */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";
TG_MARK_SOURCE;

SEC("lsm/bprm_check_security")
int BPF_PROG(try_lsm, struct linux_binprm *bprm, int result)
{
	return result;
}
