package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// key is one setting.
type key struct {
	name  string
	value any // the default, as a file would have it
	doc   string
	field func(*Config) any // pointer to where it goes
	check func(any) error   // of the typed value; nil = anything goes
}

// short is the first sentence of the meaning.
func (k *key) short() string {
	first, _, _ := strings.Cut(k.doc, ". ")
	return strings.TrimSuffix(first, ".")
}

// keys is every setting but gpu_types, in the order of the sample file.
var keys = []key{
	{
		"slurm_conf", "", "slurm.conf of the cluster. Empty: what Slurm's commands take by themselves.",
		func(c *Config) any { return &c.SlurmConf }, pathOrNone,
	},
	{
		"bin_dir", "", "Folder of squeue, sbatch, scontrol and scancel. Empty: the PATH.",
		func(c *Config) any { return &c.BinDir }, pathOrNone,
	},

	{
		"mode", "active", "active groups jobs; shadow decides and records what it would do, and changes nothing.",
		func(c *Config) any { return &c.Mode }, oneOf("active", "shadow"),
	},
	{
		"policy", "dqn", "What ranks the combinations of waiting jobs. dqn has learned it (see model), srpt takes what shortens all waits the fastest, greedy the highest predicted throughput, exclusive never shares; slurmbridge serve --help names them all.",
		func(c *Config) any { return &c.Policy }, word,
	},
	{
		"objective", string(policy.Turnaround), "What decisions keep small: turnaround, the mean time from a job's submission to its end, or makespan, the time until all have ended. It chooses the network of policy dqn and what the site's own ones learn.",
		func(c *Config) any { return &c.Objective }, oneOf(policy.Objectives()...),
	},
	{
		"model", "", "File of a trained model, for policies that have one. Empty: the one that is built in.",
		func(c *Config) any { return &c.Model }, pathOrNone,
	},
	{
		"retrain", true, "Whether the network of policy dqn keeps learning from what ran here, in the background, if model is empty. slurmbridge models list shows the results.",
		func(c *Config) any { return &c.Retrain }, nil,
	},
	{
		"retrain_every", 24 * time.Hour, "How long after one retraining the next begins (10m to 720h).",
		func(c *Config) any { return &c.RetrainEvery }, durationIn(10*time.Minute, 720*time.Hour),
	},
	{
		"retrain_days", 14, "How many days it learns from and is judged on (1 to 90).",
		func(c *Config) any { return &c.RetrainDays }, intIn(1, 90),
	},
	{
		"retrain_runs", 250, "How many runs there must be in those days at the least (100 to 4000).",
		func(c *Config) any { return &c.RetrainRuns }, intIn(100, 4000),
	},
	{
		"window", rlcore.DefaultWindow, "How many waiting jobs of highest priority one decision looks at (1 to 12).",
		func(c *Config) any { return &c.Window }, intIn(1, 12),
	},
	{
		"max_group", 5, "How many jobs may share one GPU (1 to 16; 1 turns sharing off).",
		func(c *Config) any { return &c.MaxGroup }, intIn(1, 16),
	},
	{
		"join", true, "Whether waiting jobs may join jobs that already run on a GPU.",
		func(c *Config) any { return &c.Join }, nil,
	},
	{
		"leave_room", "auto", "Whether jobs leave a share of their GPU free for one that may join later. auto: after a week without a hand-written request for a part of a GPU's shares (mps:30, say); Slurm would start such a job there unchecked.",
		func(c *Config) any { return &c.LeaveRoom }, oneOf("auto", "yes", "no"),
	},

	{
		"lease", 60 * time.Second, "How long waiting jobs stay gated when the bridge has died; then Slurm starts them like any other (20s to 1h).",
		func(c *Config) any { return &c.Lease }, durationIn(20*time.Second, time.Hour),
	},
	{
		"poll", 30 * time.Second, "Longest time between two looks at the queue; events make it look at once (1s to 10m, at most half the lease).",
		func(c *Config) any { return &c.Poll }, durationIn(time.Second, 10*time.Minute),
	},
	{
		"lua", "auto", "Whether job_submit.lua gates new jobs. auto detects it. Without it the bridge gates them itself, which takes Slurm 23.02.6 or later.",
		func(c *Config) any { return &c.Lua }, oneOf("auto", "yes", "no"),
	},
	{
		"name", "", "What the gate calls this daemon, other than the host's name: of two daemons (one for each SlurmctldHost) one decides, and the other takes over when the gate is not renewed.",
		func(c *Config) any { return &c.Name }, partitionOrNone,
	},
	{
		"gate_file", "/run/slurmbridge/gate", "Where job_submit.lua reads which job is the gate.",
		func(c *Config) any { return &c.GateFile }, path,
	},
	{
		"gate_partition", "slurmbridge", "Partition for the gate alone, hidden from users (slurm.conf: PartitionName=slurmbridge Nodes=ALL Hidden=YES RootOnly=YES MaxTime=1). Empty, or while there is none or it isn't up: each partition that has a node which shares GPUs, where all users see the gate.",
		func(c *Config) any { return &c.GatePartition }, partitionOrNone,
	},
	{
		"wake_file", "/run/slurmbridge/wake", "What job_submit.lua and EpilogSlurmctld append to, to make the bridge look.",
		func(c *Config) any { return &c.WakeFile }, path,
	},

	{
		"memory_margin", 0.05, "Fraction of a GPU's memory that no group may count on (0.01 to 0.5).",
		func(c *Config) any { return &c.MemoryMargin }, floatIn(0.01, 0.5),
	},
	{
		"grace", rlcore.DefaultGrace, "By what part of its own run time alone a job may end later than plain Slurm would have ended it, with whole GPUs in order of priority (0.01 to 100).",
		func(c *Config) any { return &c.Grace }, floatIn(0.01, 100),
	},
	{
		"max_delay", rlcore.DefaultMaxDelayS * time.Second, "How long a job may wait next to an idle GPU because of the bridge, in all (1s to 24h).",
		func(c *Config) any { return &c.MaxDelay }, durationIn(time.Second, 24*time.Hour),
	},
	{
		"max_slowdown", rlcore.DefaultMaxSlowdown, "How much slower a job may run for sharing, as a factor, where its owner says nothing (1 to 100; 0 = no limit).",
		func(c *Config) any { return &c.MaxSlowdown }, zeroOr(floatIn(1, 100)),
	},
	{
		"trust", 1.0, "How many standard deviations a predicted slowdown is taken to be worse than predicted (0.1 to 10).",
		func(c *Config) any { return &c.Trust }, floatIn(0.1, 10),
	},

	{
		"retry_alone", true, "Whether a job that failed with the MPS server that it shared, for want of GPU memory, or ran out of time because it shared runs again, alone, if it may be requeued; after another failure, where its owner says share:retry.",
		func(c *Config) any { return &c.RetryAlone }, nil,
	},
	{
		"extend_limit", true, "Whether a running job that would miss its time limit because it shares gets what sharing cost it, up to its partition's MaxTime, the next reservation, its deadline and its contract. Backfill plans with the new limit.",
		func(c *Config) any { return &c.ExtendLimit }, nil,
	},
	{
		"extend_past_max_time", false, "Whether extend_limit may raise a running job's limit beyond its partition's MaxTime. Such a job can run into a window that is kept free by MaxTime alone; reservations are kept in any case.",
		func(c *Config) any { return &c.ExtendPastMaxTime }, nil,
	},
	{
		"idle_after", time.Hour, "For how long a running job must have done nothing with its GPUs to be listed (slurmbridge usage --idle), counted and alerted on (10m to 720h). Nothing is ever ended for it.",
		func(c *Config) any { return &c.IdleAfter }, durationIn(10*time.Minute, 720*time.Hour),
	},
	{
		"idle_comment", false, "Whether such a job's AdminComment says so, in mode active.",
		func(c *Config) any { return &c.IdleComment }, nil,
	},

	{
		"include_partitions",
		[]string{},
		"Partitions to look after. Empty: all.",
		func(c *Config) any { return &c.IncludePartitions }, nil,
	},
	{
		"exclude_partitions",
		[]string{},
		"Partitions to leave alone.",
		func(c *Config) any { return &c.ExcludePartitions }, nil,
	},
	{
		"sharers_only",
		[]string{},
		"Partitions in which only shares of GPUs are handed out. Before 23.11.5 Slurm gives a job of a whole GPU one that a sharer still uses, once another sharer has ended: there jobs share only on nodes that are in no other partition. job_submit.lua makes gpu:1 all shares of a GPU there, and refuses requests for more. Later releases need none.",
		func(c *Config) any { return &c.SharersOnly }, nil,
	},
	{
		"host_share",
		"divide",
		"What becomes of the cores and the memory that a job has by its partition's defaults for a GPU (DefCpuPerGPU, DefMemPerGPU). divide: the members of a group that starts divide them, so that together they take what one job would. keep: each takes all of them, and how many jobs share follows from the node's cores. What a user asks for is never divided.",
		func(c *Config) any { return &c.HostShare }, oneOf("divide", "keep"),
	},
	{
		"hand_shares",
		[]string{},
		"Who may ask for a part of a GPU's shares by hand (mps:30, say): users by name, partitions as partition:NAME. Of anybody else's request job_submit.lua makes gpu:shared while the bridge is active, since Slurm would start such a job beside others unchecked. In partitions that are left alone it stays.",
		func(c *Config) any { return &c.HandShares }, nil,
	},

	{
		"database", "/var/lib/slurmbridge/slurmbridge.db", "Profiles, runs and the journal (SQLite).",
		func(c *Config) any { return &c.Database }, path,
	},
	{
		"database_mib", 4096, "How large the database may grow, MiB (64 to 1000000). Of what it keeps, 90 days, the oldest part is removed where it holds more; a day is kept in any case.",
		func(c *Config) any { return &c.DatabaseMiB }, intIn(64, 1_000_000),
	},
	{
		"listen", ":9797", "Address for metrics and for the nodes' records, host:port. Empty: none.",
		func(c *Config) any { return &c.Listen }, address,
	},
	{
		"web_config", "", "TLS and passwords of that address, a file in the format of Prometheus's exporters. Empty: neither.",
		func(c *Config) any { return &c.WebConfig }, pathOrNone,
	},
	{
		"munge_socket", "", "munged's socket, which proves the sender of a record. Empty: munge's own default.",
		func(c *Config) any { return &c.MungeSocket }, pathOrNone,
	},
	{
		"key_file",
		"",
		"File of the key that proves who sent a record where there is no MUNGE (AuthType=auth/slurm), as key_file of gpuprof.yaml and node.yaml; doctor says how to make it. It is root's or SlurmUser's, mode 0600, and read again each time: a line is base64 of 32 random bytes, the first signs, each is believed. Empty: MUNGE proves it.",
		func(c *Config) any { return &c.KeyFile }, pathOrNone,
	},
	{
		"record_users",
		[]string{},
		"Users that may send nodes' records, in addition to root and SlurmUser.",
		func(c *Config) any { return &c.RecordUsers }, nil,
	},
	{
		"log_level", "info", "debug, info, warn or error.",
		func(c *Config) any { return &c.LogLevel }, oneOf("debug", "info", "warn", "error"),
	},
}

// Names lists every setting, in the order of the sample file.
func Names() []string {
	out := make([]string, 0, len(keys)+1)
	for i := range keys {
		out = append(out, keys[i].name)
	}
	return append(out, gpuTypesKey)
}

// Check returns what is wrong with a value of a setting, nil = nothing. The error continues
// a line that begins with the setting's name, which must be one of Names.
func Check(name string, value any) error {
	i := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
	return keys[i].set(&Config{}, value)
}

// set puts a value that came from YAML, a variable or a flag into c. The error
// continues a line that begins with the setting's name.
func (k *key) set(c *Config, value any) error {
	p := k.field(c)
	if err := assign(p, value); err != nil {
		return err
	}
	if k.check == nil {
		return nil
	}
	return k.check(p)
}

func assign(p, value any) error {
	switch p := p.(type) {
	case *string:
		switch v := value.(type) {
		case string:
			*p = v
		case bool:
			// YAML's own words: a file that says `lua: true` means yes.
			*p = map[bool]string{true: "yes", false: "no"}[v]
		default:
			return mismatch(value, "text")
		}
	case *[]string:
		return assignList(p, value)
	case *bool:
		switch v := value.(type) {
		case bool:
			*p = v
		case string:
			b, ok := map[string]bool{"true": true, "yes": true, "false": false, "no": false}[strings.ToLower(v)]
			if !ok {
				return mismatch(value, "true or false")
			}
			*p = b
		default:
			return mismatch(value, "true or false")
		}
	case *int:
		switch v := value.(type) {
		case int:
			*p = v
		case string:
			i, err := strconv.Atoi(v)
			if err != nil {
				return mismatch(value, "a whole number")
			}
			*p = i
		default:
			return mismatch(value, "a whole number")
		}
	case *float64:
		switch v := value.(type) {
		case float64:
			*p = v
		case int:
			*p = float64(v)
		case string:
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				return mismatch(value, "a number")
			}
			*p = f
		default:
			return mismatch(value, "a number")
		}
	case *time.Duration:
		switch v := value.(type) {
		case time.Duration:
			*p = v
		case string:
			d, err := time.ParseDuration(v)
			if err != nil {
				return mismatch(value, "a duration such as 60s, 5m or 1h30m")
			}
			*p = d
		default:
			return mismatch(value, "a duration such as 60s, 5m or 1h30m")
		}
	}
	return nil
}

func assignList(p *[]string, value any) error {
	var in []string
	switch v := value.(type) {
	case []string:
		in = v
	case string:
		in = strings.Split(v, ",")
	case []any:
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return mismatch(e, "text in each place of the list")
			}
			in = append(in, s)
		}
	default:
		return mismatch(value, "a list of names")
	}
	out := make([]string, 0, len(in))
	for _, s := range in {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	*p = out
	return nil
}

func mismatch(value any, want string) error {
	return fmt.Errorf("is %s, but takes %s", show(value), want)
}

// show prints a value as the file has it, cut where it is long.
func show(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%.60q", s)
	}
	return fmt.Sprintf("%.60s", fmt.Sprint(v))
}

func oneOf(words ...string) func(any) error {
	return func(p any) error {
		s := *p.(*string)
		for _, w := range words {
			if s == w {
				return nil
			}
		}
		last := len(words) - 1
		return fmt.Errorf("is %s, but takes %s or %s", show(s), strings.Join(words[:last], ", "), words[last])
	}
}

var wordPattern = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`)

func word(p any) error {
	if s := *p.(*string); !wordPattern.MatchString(s) {
		return fmt.Errorf("is %s, but takes a name of small letters, digits, '-' and '_'", show(s))
	}
	return nil
}

// partitionPattern is an optional partition's name.
var partitionPattern = regexp.MustCompile(`^[A-Za-z0-9_.+-]*$`)

func partitionOrNone(p any) error {
	if s := *p.(*string); !partitionPattern.MatchString(s) {
		return fmt.Errorf("is %s, but takes a partition's name", show(s))
	}
	return nil
}

func path(p any) error {
	if s := *p.(*string); !filepath.IsAbs(s) {
		return fmt.Errorf("is %s, but takes a path from the root, such as /run/slurmbridge", show(s))
	}
	return nil
}

func pathOrNone(p any) error {
	if *p.(*string) == "" {
		return nil
	}
	return path(p)
}

func address(p any) error {
	s := *p.(*string)
	if s == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		var n uint64
		if n, err = strconv.ParseUint(port, 10, 16); err == nil && n == 0 && port != "0" {
			err = errors.New("no port")
		}
	}
	if err != nil {
		return fmt.Errorf("is %s, but takes host:port or :port, such as :9797", show(s))
	}
	return nil
}

func intIn(lo, hi int) func(any) error {
	return func(p any) error {
		if v := *p.(*int); v < lo || v > hi {
			return fmt.Errorf("is %d, but takes %d to %d", v, lo, hi)
		}
		return nil
	}
}

func floatIn(lo, hi float64) func(any) error {
	return func(p any) error {
		// Written so that NaN is refused.
		if v := *p.(*float64); !(v >= lo && v <= hi) {
			return fmt.Errorf("is %g, but takes %g to %g", v, lo, hi)
		}
		return nil
	}
}

func zeroOr(check func(any) error) func(any) error {
	return func(p any) error {
		if *p.(*float64) == 0 {
			return nil
		}
		if err := check(p); err != nil {
			return fmt.Errorf("%w, or 0", err)
		}
		return nil
	}
}

func durationIn(lo, hi time.Duration) func(any) error {
	return func(p any) error {
		if v := *p.(*time.Duration); v < lo || v > hi {
			return fmt.Errorf("is %s, but takes %s to %s", text(v), text(lo), text(hi))
		}
		return nil
	}
}

// text prints a duration without its zeros: 5m, not 5m0s.
func text(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
