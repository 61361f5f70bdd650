package doctor

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
)

// Facts is everything Examine looks at. A field that could not be found out is
// left nil, and nothing is then said of it.
type Facts struct {
	// Config is `scontrol show config`; see ParseConfig. nil = slurmctld did
	// not answer.
	Config map[string]string
	// Nodes is `scontrol show nodes -o`; see ParseNodes.
	Nodes []Node
	// Partitions is `scontrol show partitions -o`; see ParsePartitions.
	Partitions []Partition
	// GresConf and JobSubmitLua are the texts of the files beside slurm.conf;
	// nil = there is none. Asked only where ConfDir is set.
	GresConf, JobSubmitLua *string
	// ConfDir is the folder of slurm.conf, where this machine has it.
	ConfDir string
	// Hooks lists the files that Prolog, Epilog, TaskProlog and EpilogSlurmctld
	// come down to on this machine, by setting.
	Hooks map[string][]string
	// Folders says of each folder the bridge writes to whether it is there.
	Folders map[string]bool
	// MungeSocket says whether munged's socket is there.
	MungeSocket *bool
	// Munge is what went wrong with a credential made and read here; "" = nothing,
	// nil = not tried.
	Munge *string
	// User is who the bridge runs as.
	User string
	// Account says whether User has an account; nil = not asked.
	Account *bool
	// Limits are accounting's on what several jobs have together.
	Limits []Limit
	// Daemon is what the running daemon said; nil = not asked.
	Daemon *Daemon
	// PackagedLua is the job_submit.lua that is installed with the programs; nil =
	// there is none.
	PackagedLua *string
	// Agents holds what the nodes' agents said, by node; nil = not asked.
	Agents map[string]Agent
	// Settings are the bridge's own.
	Settings *config.Config
}

// Agent is what a node's agent said.
type Agent struct {
	Err string // why it can't be reached, "" = it can
	// Locked says why what it says can't be read: TLS, a password; "" = it can.
	Locked string
	Sick   string // what it says is wrong with it, "" = nothing
	// Ahead is the node's clock less this machine's.
	Ahead time.Duration
	// MPS says whether the node has nvidia-cuda-mps-control; nil = not known.
	MPS *bool
	// Hooks says whether the settings of the node's hooks make sense; nil = not known.
	Hooks *bool
}

// Node is a node as scontrol shows it.
type Node struct {
	Name, State string
	Addr        string // where it is reached, "" = not said
	// GPUs by type; "" = no type.
	GPUs map[string]int
	// Shares by kind, "mps" or "shard".
	Shares map[string]int
}

// GPUCount is the number of the node's GPUs.
func (n *Node) GPUCount() int {
	sum := 0
	for _, c := range n.GPUs {
		sum += c
	}
	return sum
}

// types lists the node's GPU types.
func (n *Node) types() []string { return slices.Sorted(maps.Keys(n.GPUs)) }

// Partition is a partition as scontrol shows it.
type Partition struct {
	Name    string
	Default bool
	State   string // UP, DOWN, DRAIN or INACTIVE
	Billing string // TRESBillingWeights, "" = none
	// DefMem says that jobs get a memory limit of their own by default.
	DefMem bool
}

// ParseConfig reads `scontrol show config`. Lines that hold no setting are
// passed over; "(null)" is "". Settings that newer releases number (Prolog[0],
// Prolog[1]) are put together with commas.
func ParseConfig(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if value == "(null)" {
			value = ""
		}
		name, _, numbered := strings.Cut(name, "[")
		if old := out[name]; numbered && old != "" {
			value = old + "," + value
		}
		if name != "" {
			out[name] = value
		}
	}
	return out
}

// ParseNodes reads `scontrol show nodes -o`.
func ParseNodes(text string) []Node {
	var out []Node
	for line := range strings.Lines(text) {
		f := fields(line)
		if f["NodeName"] == "" {
			continue
		}
		n := Node{Name: f["NodeName"], State: f["State"], Addr: f["NodeAddr"], GPUs: map[string]int{}, Shares: map[string]int{}}
		for _, g := range splitGres(f["Gres"]) {
			switch g.name {
			case "gpu":
				n.GPUs[g.typ] += g.count
			case "mps", "shard":
				n.Shares[g.name] += g.count
			}
		}
		out = append(out, n)
	}
	return out
}

// ParsePartitions reads `scontrol show partitions -o`.
func ParsePartitions(text string) []Partition {
	var out []Partition
	for line := range strings.Lines(text) {
		f := fields(line)
		if f["PartitionName"] == "" {
			continue
		}
		p := Partition{Name: f["PartitionName"], Default: f["Default"] == "YES", State: f["State"], Billing: f["TRESBillingWeights"]}
		for _, k := range []string{"DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU"} {
			if v, ok := f[k]; ok && limited(v) {
				p.DefMem = true
			}
		}
		if strings.Contains(f["JobDefaults"], "DefMemPerGPU") {
			p.DefMem = true
		}
		out = append(out, p)
	}
	return out
}

// limited reports whether a DefMem setting sets a limit at all.
func limited(v string) bool { return v != "" && v != "0" && v != "UNLIMITED" }

// fields takes a line of NAME=VALUE words apart. A value with blanks in it (an
// operating system, a reason) loses what follows the first.
func fields(line string) map[string]string {
	out := map[string]string{}
	for _, w := range strings.Fields(line) {
		if k, v, ok := strings.Cut(w, "="); ok {
			if v == "(null)" {
				v = ""
			}
			if _, twice := out[k]; !twice {
				out[k] = v
			}
		}
	}
	return out
}

type gres struct {
	name, typ string
	count     int
}

// splitGres reads a node's Gres, e.g. "gpu:titanxp:1(S:0),mps:100".
func splitGres(s string) []gres {
	var out []gres
	depth, start := 0, 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) {
			switch s[i] {
			case '(':
				depth++
			case ')':
				depth--
			}
			if s[i] != ',' || depth > 0 {
				continue
			}
		}
		word, _, _ := strings.Cut(s[start:i], "(")
		start = i + 1
		part := strings.Split(word, ":")
		g := gres{name: part[0], count: 1}
		if len(part) > 1 {
			if n, err := strconv.Atoi(part[len(part)-1]); err == nil {
				g.count, part = n, part[:len(part)-1]
			}
		}
		if len(part) > 1 {
			g.typ = part[1]
		}
		if g.name != "" && g.count > 0 {
			out = append(out, g)
		}
	}
	return out
}

// release takes "22.05.8" apart; zeros where it makes no sense.
func release(s string) [3]int {
	var v [3]int
	for i, p := range strings.SplitN(s, ".", 3) {
		digits := strings.TrimRightFunc(p, func(r rune) bool { return r < '0' || r > '9' })
		if n, err := strconv.Atoi(digits); err == nil {
			v[i] = n
		}
	}
	return v
}

func older(a, b [3]int) bool { return slices.Compare(a[:], b[:]) < 0 }

// has reports whether a comma-separated setting holds the word, whatever its case.
func has(list, word string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(w string) bool {
		w, _, _ = strings.Cut(strings.TrimSpace(w), "=")
		return strings.EqualFold(w, word)
	})
}
