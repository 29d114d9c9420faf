/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * What the programs share with each other and with bpf_layout.py, which holds the same layouts for Python.
 * Sizes are bytes, times nanoseconds of CLOCK_MONOTONIC unless the name says otherwise.
 */
#ifndef TG_COLLECTOR_H
#define TG_COLLECTOR_H

#define TG_ARGV_BYTES 512
#define TG_COMM_BYTES 16
#define TG_HIST_BUCKETS 32
#define TG_MAX_PROCESSES 16384
#define TG_MAX_SUBJECTS 8192
#define TG_MAX_SESSIONS 1024
#define TG_MAX_SUMMED_CPUS 128
#define TG_FIRST_CALL (1ULL << 32) /* subjects below are the daemon's */

enum tg_event_kind {
	TG_FORK = 1,
	TG_EXEC = 2,
	TG_EXIT = 3,
	TG_CALL = 4,
	TG_BURST = 5,
	TG_OOM = 6,
	TG_ATTACH = 7,
	TG_LATENCY = 8,
};

enum tg_subject_kind { TG_RUNTIME = 1, TG_CALL_SUBJECT = 2 };
enum tg_memory_source { TG_RSS_STAT = 1, TG_MEMCG = 2 };
enum tg_loss { TG_LOST_RING = 0, TG_LOST_MAP = 1, TG_LOSSES = 2 };

enum { TG_FILE = 0, TG_ANON = 1, TG_SWAP = 2, TG_SHMEM = 3, TG_MEMBERS = 4 }; /* order of the kernel's MM_* */

struct tg_config {
	u64 window_ns;   /* length of a burst window */
	u64 burst_bytes; /* growth in a window that is a burst; 0: none is */
	u64 latency_ns;  /* a longer wait is an event; 0: none is */
	u32 memory_source;
	u32 page_shift;
};

/* The head of every event; a TG_CALL has argv after it. */
struct tg_event {
	u64 t_ns;
	u64 subject;
	u64 a;
	u64 b;
	u64 cgroup_id;
	u32 kind;
	u32 pid;
	u32 ppid;
	u32 argv_bytes;
	char comm[TG_COMM_BYTES];
};
struct tg_call_event {
	struct tg_event head;
	char argv[TG_ARGV_BYTES];
};

/* Counters of one subject, or of a session (its runtime and all its calls). */
struct tg_stats {
	s64 bytes[TG_MEMBERS];
	s64 used; /* anon + shmem, kept apart so that its highest value is exact */
	s64 peak;
	s64 window_max;
	s64 window_grown;
	u64 window_start;
	s64 start_session; /* session's used when the subject began */
	s64 max_session;   /* session's used at its highest while this subject grew */
	u64 oncpu_ns;
	u64 wait_ns;
	u64 wait_max_ns;
	u64 switches;
	u64 forks;
	u64 execs;
	u64 exits;
	s64 alive;
	u64 bursts;
	u64 ooms;
	u64 hist[TG_HIST_BUCKETS];
};

/* How far each CPU's copy of a per-CPU variable lies from its nominal address. */
struct tg_cpus {
	u32 count;
	u64 offset[TG_MAX_SUMMED_CPUS];
};

/* An exact reading of the counters of one mm. */
struct tg_reading {
	u64 mm;
	s64 of[TG_MEMBERS];
};

/* What a cgroup, or a process that userspace names, is to be counted as. */
struct tg_tag {
	u64 subject;
	u64 session; /* subject of the session's runtime */
	u32 kind;
	u32 depth; /* generations of exec'd children that still belong to the runtime */
};

enum {
	TG_P_FORKED = 1,    /* forked by a process of its subject and has not exec'd since */
	TG_P_SHARES_MM = 2, /* vfork: the memory is its parent's until it execs */
	TG_P_DEAD = 4,      /* the last thread is on its way out */
	TG_P_OOM = 8,       /* chosen by the OOM killer: another task may free its memory */
};

/* One process, by tgid. A hash, not task storage of the leader: an exec by another thread replaces the leader. */
struct tg_process {
	struct tg_tag tag;
	u64 mm; /* address of the memory that is counted; 0 while none is */
	u64 fork_ns;
	u64 exit_ns;
	s64 last[TG_MEMBERS];  /* rss_stat: counters when last seen; memcg: what this process added */
	s64 floor[TG_MEMBERS]; /* rss_stat: exact counters at its fork or exec, while the cheap ones still lag */
	s64 base[TG_MEMBERS];  /* rss_stat: what it started with; memcg: foreign memory that it may still free */
	s64 exec_bytes[TG_MEMBERS]; /* memcg: charged to the new mm before the exec was done */
	u64 exit_cgroup;
	s64 hiwater;
	u32 flags;
	u32 ppid;
	u32 status;
	u32 dying_pid;
};

/* The tracked task that this CPU runs now; userspace adds its open slice to the counters. */
struct tg_running {
	u64 subject;
	u64 session;
	u64 since_ns;
};

struct tg_thread {
	u64 enqueued_ns;
};

/* Argument of the tag_process program; ``result``: 0, or a negative errno. */
struct tg_tag_request {
	struct tg_tag tag;
	u32 pid;
	s32 result;
};

#endif
