package text

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// record reads a line of KEY=VALUE words. Of a key that stands there twice the first counts, and nothing counts from
// the first of the fields of free text on. Of a value with blanks in it only the first word is kept; "(null)" is "".
func record(line []byte, free ...string) map[string]string {
	f := make(map[string]string, 32)
	for word := range bytes.FieldsSeq(line) {
		key, value, has := bytes.Cut(word, []byte{'='})
		if !has {
			continue
		}
		k := string(key)
		if slices.Contains(free, k) {
			break
		}
		if _, seen := f[k]; seen {
			continue
		}
		if string(value) == "(null)" {
			value = nil
		}
		f[k] = string(value)
	}
	return f
}

// ParseConfig reads `scontrol show config`: lines of "Key   = value", "(null)" as "".
// Of a key that stands there twice (cgroup.conf follows slurm.conf) the first counts.
// Settings that newer releases number (Prolog[0], Prolog[1]) are also there under their
// bare name, joined by commas.
func ParseConfig(out []byte) map[string]string {
	config := map[string]string{}
	numbered := map[string][]string{}
	for line := range bytes.Lines(out) {
		key, value, ok := strings.Cut(string(line), "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if _, seen := config[key]; !ok || seen || key == "" || strings.ContainsAny(key, " \t") {
			continue
		}
		if value == "(null)" {
			value = ""
		}
		config[key] = value
		if name, _, is := strings.Cut(key, "["); is && name != "" && value != "" {
			numbered[name] = append(numbered[name], value)
		}
	}
	for name, values := range numbered {
		if config[name] == "" {
			config[name] = strings.Join(values, ",")
		}
	}
	return config
}

// Partition is a partition as scontrol shows it.
type Partition struct {
	Name    string
	Hidden  bool   // ordinary users don't see it, nor jobs in it
	State   string // UP, DOWN, DRAIN or INACTIVE
	Billing string // TRESBillingWeights, "" = none
	QOS     string // that its jobs are under besides their own, "N/A" = none
	// DefMem: its jobs get a memory limit by default, DefMemPerCPU MiB for each CPU or, where that is 0, so much a node.
	DefMem       bool
	DefMemPerCPU float64
	// MaxCPUsPerNode is the most CPUs that its jobs have of a node, 0 = all.
	MaxCPUsPerNode int
	MaxTime        time.Duration // longest time limit, 0 = any
	WholeNodes     bool          // each job gets whole nodes (OverSubscribe=EXCLUSIVE)
	OneUser        bool          // a node is one user's at a time (ExclusiveUser=YES)
	PerGPU         job.PerGPU
	// Tier and PreemptMode are for preempt/partition_prio.
	Tier        int
	PreemptMode string // OFF, REQUEUE and so on
}

// BillsGPUsAlone reports whether the partition bills whole GPUs, of any type, and no shares of one.
func (p *Partition) BillsGPUsAlone() bool {
	bills := func(kinds ...string) bool {
		return slices.ContainsFunc(strings.Split(strings.ToLower(p.Billing), ","), func(w string) bool {
			name, weight, _ := strings.Cut(strings.TrimSpace(w), "=")
			kind, _, _ := strings.Cut(name, ":")
			return slices.Contains(kinds, kind) && strings.Trim(weight, "0.") != ""
		})
	}
	return bills("gres/gpu") && !bills("gres/mps", "gres/shard")
}

// ParsePartitions reads `scontrol show partitions -o`.
func ParsePartitions(out []byte) []Partition {
	var parts []Partition
	for line := range bytes.Lines(out) {
		f := record(line)
		if !bytes.HasPrefix(line, []byte("PartitionName=")) || f["PartitionName"] == "" {
			continue
		}
		tier, _ := strconv.Atoi(f["PriorityTier"])
		parts = append(parts, Partition{
			Tier: tier, PreemptMode: f["PreemptMode"],
			Name: f["PartitionName"], Hidden: f["Hidden"] == "YES", State: f["State"], Billing: f["TRESBillingWeights"],
			QOS:    f["QoS"],
			DefMem: HasDefMem(f), DefMemPerCPU: ParseMiB(f["DefMemPerCPU"]), MaxCPUsPerNode: number(f["MaxCPUsPerNode"]),
			MaxTime: parseLimit([]byte(f["MaxTime"])), PerGPU: ParsePerGPU(f["JobDefaults"]),
			// From 26.05 on all three of them are words of Exclusive=; TOPO takes whole nodes, too.
			WholeNodes: f["OverSubscribe"] == "EXCLUSIVE" || f["ExclusiveTopo"] == "YES" ||
				f["Exclusive"] == "NODE" || f["Exclusive"] == "TOPO",
			OneUser: f["ExclusiveUser"] == "YES" || f["Exclusive"] == "USER",
		})
	}
	return parts
}

// ParseReservations reads `scontrol show reservations -o`. A reservation without nodes, of licences
// say, is skipped; one with unreadable nodes may hold any node. An unreadable time is zero.
func ParseReservations(out []byte) []job.Reservation {
	var all []job.Reservation
	for line := range bytes.Lines(out) {
		f := record(line, "Comment")
		if !bytes.HasPrefix(line, []byte("ReservationName=")) || f["ReservationName"] == "" || f["Nodes"] == "" {
			continue
		}
		r := job.Reservation{
			Name: f["ReservationName"], Start: parseTime([]byte(f["StartTime"])),
			End: parseTime([]byte(f["EndTime"])), Magnetic: HasOption(f["Flags"], "MAGNETIC"),
		}
		if users := f["Users"]; !IsNone(users) && !strings.HasPrefix(users, "-") { // "-ann": all but ann
			r.Users = strings.Split(users, ",")
		}
		r.Nodes = ExpandHosts(f["Nodes"])
		for name := range r.Nodes {
			if strings.Contains(name, "[") { // as it stands in the list: it can't be read
				r.Nodes = nil
				break
			}
		}
		all = append(all, r)
	}
	return all
}

// ParsePerGPU reads JobDefaults, as scontrol shows a partition's or the cluster's:
// "DefCpuPerGPU=4,DefMemPerGPU=2000", "(null)" where there are none.
func ParsePerGPU(list string) job.PerGPU {
	read := func(name string) uint64 {
		value, _ := Option(list, name)
		n, _ := strconv.ParseUint(value, 10, 32) // what isn't read is no default
		return n
	}
	return job.PerGPU{CPUs: read("DefCpuPerGPU"), MemMiB: read("DefMemPerGPU")}
}

// HasDefMem reports whether a partition's or the cluster's settings limit the memory of
// jobs that don't name any, also of jobs that share a GPU: DefMemPerGPU counts whole GPUs alone.
func HasDefMem(f map[string]string) bool {
	return slices.ContainsFunc([]string{"DefMemPerCPU", "DefMemPerNode"}, func(key string) bool {
		v := f[key]
		return v != "" && v != "0" && v != "UNLIMITED"
	})
}

// federated is the line of `scontrol show federation` that names this cluster, by a name that is an argument as it
// stands.
var federated = regexp.MustCompile(`(?m)^Self: *([A-Za-z0-9][A-Za-z0-9_.-]*):`)

// FederatedSelf reads `scontrol show federation`: this cluster's name, "" where it is in no federation.
func FederatedSelf(out []byte) string {
	if m := federated.FindSubmatch(out); m != nil {
		return string(m[1])
	}
	return ""
}
