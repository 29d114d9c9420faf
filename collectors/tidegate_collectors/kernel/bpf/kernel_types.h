/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * The few kernel types that our programs read, kept by hand so that neither bpftool nor a kernel's BTF is needed to
 * build. CO-RE rewrites each field offset at load; it does NOT rewrite the stride of an array that is indexed by a
 * variable, so no such access may be written here (see mm_counter() in memory.h).
 */
#ifndef TG_KERNEL_TYPES_H
#define TG_KERNEL_TYPES_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u16 __sum16;
typedef _Bool bool;
typedef int pid_t;
typedef u32 uid_t;

enum { false = 0, true = 1 };

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_EXIST = 2,
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

#ifdef TG_BCC
#include "kernel_layout.h" /* made by ../bcc_compile.py: the types below as they are in the running kernel */
#else

/* Values are placeholders: bpf_core_enum_value() puts the running kernel's own in. */
enum node_stat_item { NR_ANON_MAPPED = 17, NR_FILE_MAPPED = 18, NR_SHMEM = 22 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct kernfs_node {
	u64 id;
};
struct cgroup_root {
	int hierarchy_id;
};
struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_root *root;
};
struct css_set {
	struct cgroup *dfl_cgrp;
};
struct cgroup_subsys_state {
	struct cgroup *cgroup;
};
struct mem_cgroup {
	struct cgroup_subsys_state css;
};
struct percpu_counter {
	s64 count;
	s32 *counters;
};
struct mm_struct {
	struct percpu_counter rss_stat[4];
	unsigned long hiwater_rss;
	unsigned long arg_start;
	unsigned long arg_end;
};
struct signal_struct {
	atomic_t live;
	int group_exit_code;
	unsigned int flags;
};
struct task_struct {
	unsigned int flags;
	int exit_code;
	pid_t pid;
	pid_t tgid;
	struct mm_struct *mm;
	struct css_set *cgroups;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	char comm[16];
};
struct bpf_array {
	void *pptrs[1];
};
struct linux_binprm;
struct pt_regs;

#pragma clang attribute pop

#endif /* TG_BCC */

#define PF_KTHREAD 0x00200000
#define PF_MEMALLOC 0x00000800
#define SIGNAL_GROUP_EXIT 0x00000004
#define TASK_DEAD 0x00000080

/* Puts the hash of the source into the object, where build.py looks for it. libbpf skips the section. */
#ifdef TG_SOURCE_MARK
#define TG_MARK_SOURCE static const char tg_source_mark[] __attribute__((section("tidegate"), used)) = TG_SOURCE_MARK
#else
#define TG_MARK_SOURCE struct tg_no_mark
#endif

#endif
