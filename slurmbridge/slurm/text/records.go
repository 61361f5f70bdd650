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

// record parses a line of KEY=VALUE words up to the first field of free text. If a key occurs twice, the first counts.
// A value ends at the first blank; "(null)" is "".
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

// ParseConfig reads `scontrol show config`: lines of "Key   = value", "(null)" as "". If a key occurs twice, the first
// counts: cgroup.conf follows slurm.conf. Settings that newer releases number (Prolog[0], Prolog[1]) are also in the
// result without numbers, joined by commas.
func ParseConfig(out []byte) map[string]string {
	config := map[string]string{}
	numbered := map[string][]string{}
	for line := range bytes.Lines(out) {
		key, value, ok := strings.Cut(string(line), "=")
		key = strings.TrimSpace(key)
		value = strings.TrimSpace(value)
		if _, seen := config[key]; !ok || seen || key == "" || strings.ContainsAny(key, " \t") {
			continue
		}
		if value == "(null)" {
			value = ""
		}
		config[key] = value
		if name, _, isNumbered := strings.Cut(key, "["); isNumbered && name != "" && value != "" {
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
	Hidden  bool   // ordinary users see neither the partition nor its jobs
	State   string // UP, DOWN, DRAIN or INACTIVE
	Billing string // TRESBillingWeights, "" = none
	QOS     string // applies to the partition's jobs besides their own QOS, "N/A" = none
	// DefMem: jobs have a default memory limit, DefMemPerCPU MiB for each CPU, or a limit by node if that is 0.
	DefMem         bool
	DefMemPerCPU   float64
	MaxCPUsPerNode int           // of all jobs in the partition, 0 = no limit
	MaxTime        time.Duration // longest time limit, 0 = no limit
	WholeNodes     bool          // each job gets whole nodes (OverSubscribe=EXCLUSIVE)
	OneUser        bool          // a node runs jobs of one user at a time (ExclusiveUser=YES)
	PerGPU         job.PerGPU
	Tier           int    // PriorityTier
	PreemptMode    string // OFF, REQUEUE and so on
}

// BillsGPUsAlone reports whether the partition bills whole GPUs, of any type, but names no weight for shares: a weight
// of 0 is the site's choice.
func (p *Partition) BillsGPUsAlone() bool {
	bills := false
	for _, w := range strings.Split(strings.ToLower(p.Billing), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(w), "=")
		switch kind, _, _ := strings.Cut(name, ":"); kind {
		case "gres/mps", "gres/shard":
			return false
		case "gres/gpu":
			bills = bills || strings.Trim(weight, "0.") != ""
		}
	}
	return bills
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
			// From 26.05 on all three are values of Exclusive=. TOPO takes whole nodes as well.
			WholeNodes: f["OverSubscribe"] == "EXCLUSIVE" || f["ExclusiveTopo"] == "YES" ||
				f["Exclusive"] == "NODE" || f["Exclusive"] == "TOPO",
			OneUser: f["ExclusiveUser"] == "YES" || f["Exclusive"] == "USER",
		})
	}
	return parts
}

// ParseReservations reads `scontrol show reservations -o`. Reservations without nodes, e.g. of licences, are skipped. A
// reservation with unreadable nodes has Nodes nil: it may hold any node. An unreadable time is zero.
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
		if users := f["Users"]; !IsNone(users) && !strings.HasPrefix(users, "-") { // "-ann": all users but ann
			r.Users = strings.Split(users, ",")
		}
		r.Nodes = ExpandHosts(f["Nodes"])
		for name := range r.Nodes {
			if strings.Contains(name, "[") { // an item that ExpandHosts could not read
				r.Nodes = nil
				break
			}
		}
		all = append(all, r)
	}
	return all
}

// ParsePerGPU reads JobDefaults of a partition or the cluster: "DefCpuPerGPU=4,DefMemPerGPU=2000", "(null)" = none.
func ParsePerGPU(list string) job.PerGPU {
	read := func(name string) uint64 {
		value, _ := Option(list, name)
		n, _ := strconv.ParseUint(value, 10, 32) // unreadable = no default
		return n
	}
	return job.PerGPU{CPUs: read("DefCpuPerGPU"), MemMiB: read("DefMemPerGPU")}
}

// HasDefMem reports whether settings of a partition or the cluster give jobs a default memory limit that also applies
// to jobs that share a GPU. DefMemPerGPU does not: it counts whole GPUs only.
func HasDefMem(f map[string]string) bool {
	return slices.ContainsFunc([]string{"DefMemPerCPU", "DefMemPerNode"}, func(key string) bool {
		v := f[key]
		return v != "" && v != "0" && v != "UNLIMITED"
	})
}

// federated matches the line of `scontrol show federation` that names this cluster, if the name is safe as an argument.
var federated = regexp.MustCompile(`(?m)^Self: *([A-Za-z0-9][A-Za-z0-9_.-]*):`)

// FederatedSelf returns this cluster's name from `scontrol show federation`, "" if it is in no federation.
func FederatedSelf(out []byte) string {
	if m := federated.FindSubmatch(out); m != nil {
		return string(m[1])
	}
	return ""
}
