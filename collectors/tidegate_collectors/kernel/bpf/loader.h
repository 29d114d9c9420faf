/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * All that differs between the two ways to compile the collector. The programs are the same: tracepoints with typed
 * arguments, whose pointers the verifier knows.
 *
 * libbpf: clang, libbpf's headers, CO-RE. What the kernel's layouts are is found when the object is loaded.
 *
 * BCC (TG_BCC): BCC is only the compiler, see ../bcc_compile.py. Layouts are those of the running kernel, from its BTF.
 * There are no maps, sections or global functions: a map, and a function of the kernel, is a number that ../bcc_object.py
 * replaces when it loads the program, and tells what it is in the instructions of a program that is never run. BCC
 * rewrites C of the main file only (and has read wrong values from arrays after that), so everything lies in headers.
 */
#ifndef TG_LOADER_H
#define TG_LOADER_H

#ifndef TG_BCC

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define TG_PROGRAM(name, tracepoint, args...) SEC("tp_btf/" #tracepoint) int BPF_PROG(name, args)
#define TG_SYSCALL(name, argument) SEC("syscall") int name(argument)
#define TG_LICENSE(text) char LICENSE[] SEC("license") = text
#define TG_KFUNC(name, returns, args...) returns name(args) __ksym __weak

/* A function that the verifier sees once and not in each program. */
#define TG_GLOBAL __attribute__((noinline))
#define TG_UNROLL _Pragma("unroll")

#define TG_MAP(name, kind, entries, K, V)  \
	struct {                           \
		__uint(type, kind);        \
		__uint(max_entries, entries); \
		__type(key, K);            \
		__type(value, V);          \
	} name SEC(".maps")
#define TG_TASK_STORAGE(name, V)                   \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_TASK_STORAGE); \
		__uint(map_flags, BPF_F_NO_PREALLOC); \
		__type(key, int);                  \
		__type(value, V);                  \
	} name SEC(".maps")
#define TG_RING(name, bytes)                       \
	struct {                                   \
		__uint(type, BPF_MAP_TYPE_RINGBUF); \
		__uint(max_entries, bytes);        \
	} name SEC(".maps")
#define MAP(name) (&name)

#else /* TG_BCC */

#define __always_inline inline __attribute__((always_inline))
#define TG_GLOBAL static __always_inline
#define TG_UNROLL _Pragma("nounroll") /* what is global there is in line here: once a loop is enough */
#define TG_LICENSE(text) struct tg_no_license

#define bpf_core_field_offset(type, field) __builtin_offsetof(type, field)
#define bpf_core_type_size(type) sizeof(type)
#define bpf_core_enum_value(type, value) ((type)(value))

/* Without rights BCC does not see the kernel's symbols, and takes the helper of older kernels for both. */
#undef bpf_probe_read_kernel
#undef bpf_probe_read_user

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_get_current_comm)(void *buffer, u32 bytes) = (void *)16;
static long (*bpf_probe_read_user)(void *to, u32 bytes, const void *from) = (void *)112;
static long (*bpf_probe_read_kernel)(void *to, u32 bytes, const void *from) = (void *)113;
static void *(*bpf_ringbuf_reserve)(void *ring, u64 bytes, u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *record, u64 flags) = (void *)132;
static void *(*bpf_task_storage_get)(void *map, struct task_struct *task, void *value, u64 flags) = (void *)156;
static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;
static void *(*bpf_map_lookup_percpu_elem)(void *map, const void *key, u32 cpu) = (void *)195;

/* The instruction that loads the address of a map. */
u64 tg_map_address(u64 kind, u64 number) asm("llvm.bpf.pseudo");

#define TG_FIRST_NUMBER 0x74670000
#define TG_DESCRIBE(name, kind, entries, key_bytes, value_bytes, flags)                                              \
	enum { tg_number_##name = TG_FIRST_NUMBER + __COUNTER__ };                                                   \
	static __always_inline void tg_describe_##name(void)                                                         \
	{                                                                                                            \
		asm volatile("r0 = %0\nr1 = %1\nr2 = %2\nr3 = %3\nr4 = %4\nr5 = %5"                                  \
			     :: "i"(tg_number_##name), "i"(kind), "i"(entries), "i"(key_bytes), "i"(value_bytes),    \
				"i"(flags));                                                                         \
	}
#define TG_MAP(name, kind, entries, K, V) TG_DESCRIBE(name, kind, entries, sizeof(K), sizeof(V), 0) struct tg_no_map
#define TG_TASK_STORAGE(name, V) \
	TG_DESCRIBE(name, BPF_MAP_TYPE_TASK_STORAGE, 0, sizeof(int), sizeof(V), BPF_F_NO_PREALLOC) struct tg_no_map
#define TG_RING(name, bytes) TG_DESCRIBE(name, BPF_MAP_TYPE_RINGBUF, bytes, 0, 0, 0) struct tg_no_map
#define MAP(name) ((void *)tg_map_address(1, tg_number_##name))

#define TG_KFUNC(name, returns, args...)           \
	TG_DESCRIBE(name, 0, 0, 0, 0, 0)           \
	static returns (*name)(args) = (void *)tg_number_##name

/* The main file has a function for each of these, which is the program. */
#define TG_SYSCALL(name, argument) static __always_inline int tg_enter_##name(argument)
#define TG_PROGRAM(name, tracepoint, args...)                              \
	static __always_inline int tg_body_##name(args);                   \
	static __always_inline int tg_enter_##name(u64 *arguments)         \
	{                                                                  \
		return tg_body_##name(TG_CAST(args));                      \
	}                                                                  \
	static __always_inline int tg_body_##name(args)

#pragma clang diagnostic ignored "-Wint-conversion" /* each argument is given as the pointer that it may be */
#define TG_CAST_1(x) (void *)arguments[0]
#define TG_CAST_2(x, more...) TG_CAST_1(more), (void *)arguments[1]
#define TG_CAST_3(x, more...) TG_CAST_2(more), (void *)arguments[2]
#define TG_CAST_4(x, more...) TG_CAST_3(more), (void *)arguments[3]
#define TG_CHOOSE(a, b, c, d, chosen, ...) chosen
#define TG_CAST(args...) TG_CHOOSE(args, TG_CAST_4, TG_CAST_3, TG_CAST_2, TG_CAST_1)(args)

#endif
#endif
