package drawn

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// Case is a cluster and what happens on it, as drawn. Everything in it can be taken out, which is how a case shrinks.
type Case struct {
	Seed uint64 `json:"seed"`
	// Sharing is "mps" or "shard".
	Sharing string `json:"sharing"`
	Nodes   []Node `json:"nodes"`
	CPUs    int    `json:"cpus"` // a node
	MemMiB  int    `json:"mem_mib"`
	// Conf are lines of slurm.conf, the last PartitionName=DEFAULT of which is for partition gpu, which has all nodes.
	Conf []string `json:"conf,omitempty"`
	// Settings are lines of slurmbridge.yaml.
	Settings []string `json:"settings,omitempty"`
	// Accounting are sacctmgr's commands, Before the operator's before the first job.
	Accounting []string `json:"accounting,omitempty"`
	Before     []string `json:"before,omitempty"`
	// Instances are what MIG cuts each GPU into, Plugins other JobSubmitPlugins around ours, which is lua.
	Instances []string `json:"instances,omitempty"`
	Plugins   string   `json:"plugins,omitempty"`
	// Site is how the site's own job_submit script calls ours: "" = there is none, "early", "late".
	Site   string  `json:"site,omitempty"`
	Jobs   []Job   `json:"jobs"`
	Events []Event `json:"events,omitempty"` // the operator's
	Faults []Fault `json:"faults,omitempty"`
}

// Fault is what befalls a machine; cluster.Faults has them by name. What breaks Slurm does so on both sides.
type Fault struct {
	AtS  int     `json:"at_s"`
	Name string  `json:"name"`
	Node int     `json:"node"`
	S    float64 `json:"s"` // how long it lasts
}

// kind is the fault as the stage knows it.
func (f *Fault) kind() *cluster.Fault {
	i := slices.IndexFunc(cluster.Faults, func(k cluster.Fault) bool { return k.Name == f.Name })
	if i < 0 {
		return &cluster.Fault{}
	}
	return &cluster.Faults[i]
}

// Node is a drawn node.
type Node struct {
	Model string   `json:"model"` // of the simulated cards
	Types []string `json:"types"` // of its GPUs, as Slurm calls them
	// Unshared are the GPUs, by index, without shares.
	Unshared []int `json:"unshared,omitempty"`
	// Cores are given for each GPU: a socket of the node's two for each half of the GPUs.
	Cores bool   `json:"cores,omitempty"`
	More  string `json:"more,omitempty"` // of its line in slurm.conf
}

// Job is a drawn job.
type Job struct {
	Name   string `json:"name"`
	AtS    int    `json:"at_s"` // of its submission
	Client string `json:"client"`
	User   string `json:"user"`
	// Args are the client's options. {NAME} stands for the number of an earlier job.
	Args    []string `json:"args,omitempty"`
	Steps   []string `json:"steps,omitempty"` // each one srun's options
	LengthS int      `json:"length_s"`
	// App is the catalogue's application that it runs on the simulated GPU, with that length alone; "" = it sleeps. New:
	// the bridge has no profile of it.
	App string `json:"app,omitempty"`
	New bool   `json:"new,omitempty"`
	// Within are commands of its script, s after its start.
	Within []Event `json:"within,omitempty"`
	Exit   int     `json:"exit,omitempty"` // its script's status
	Events []Event `json:"events,omitempty"`
}

// Event is a command that the job's owner or the operator gives: JOB stands for the job's number.
type Event struct {
	AtS     int    `json:"at_s"`
	Command string `json:"command"`
}

// has reports whether a job has one of sbatch's options.
func (j *Job) has(option string) bool {
	return slices.ContainsFunc(j.Args, func(a string) bool { return a == option || strings.HasPrefix(a, option+"=") })
}

// value is that of a job's option, "" = none.
func (j *Job) value(option string) string {
	for _, a := range j.Args {
		if v, ok := strings.CutPrefix(a, option+"="); ok {
			return v
		}
	}
	return ""
}

// sharer reports whether a job asks to share.
func (j *Job) sharer() bool {
	return slices.ContainsFunc(j.Args, func(a string) bool { return strings.Contains(a, "shared") })
}

// String says what it is in a line.
func (j *Job) String() string {
	out := fmt.Sprintf("%s %s", j.Client, strings.Join(j.Args, " "))
	for _, s := range j.Steps {
		out += fmt.Sprintf("; srun %s", s)
	}
	for _, e := range j.Within {
		out += fmt.Sprintf("; %d s after its start %s", e.AtS, e.Command)
	}
	for _, e := range j.Events {
		out += fmt.Sprintf("; at %d s %s", e.AtS, e.Command)
	}
	return out
}

// options makes the options of a private cluster those of the case's.
func (c *Case) options(o *slurmtest.Options) {
	o.NodeMore, o.CPUs, o.MemMiB, o.Accounting = nil, c.CPUs, c.MemMiB, c.Accounting != nil
	conf := c.Conf
	if len(conf) > 0 && strings.HasPrefix(conf[0], "PartitionName=DEFAULT ") { // before the gate's partition, too
		o.Extra, conf = append(conf[:1:1], o.Extra...), conf[1:]
	}
	o.Extra = append(append(o.Extra, "MinJobAge=600", "FirstJobId=101"), conf...)
	o.PowerSaving = c.savesPower()
	for _, n := range c.Nodes {
		o.NodeMore = append(o.NodeMore, n.More)
	}
	if c.Instances == nil {
		o.Cards, o.GPUMore = nil, c.gpuMore
		for _, n := range c.Nodes {
			o.Cards, o.Unshared = append(o.Cards, n.Types), n.Unshared // which are alike on all nodes
		}
	}
}

// savesPower reports whether Slurm powers idle nodes down.
func (c *Case) savesPower() bool {
	return slices.ContainsFunc(c.Conf, func(l string) bool { return strings.HasPrefix(l, "SuspendTime=") })
}

// gpuMore is what else a GPU's line has in gres.conf: where GPUs are bound to cores, those of a socket.
func (c *Case) gpuMore(node, gpu int) string {
	n, first := &c.Nodes[node], 0
	if 2*gpu >= len(n.Types) {
		first = c.CPUs / 2
	}
	if !n.Cores {
		return "Flags=nvidia_gpu_env"
	}
	return fmt.Sprintf("Flags=nvidia_gpu_env Cores=%d-%d", first, first+c.CPUs/2-1)
}

// partitions are the names of the partitions that jobs may use; gpu is the first.
func (c *Case) partitions() []string {
	out := []string{slurmtest.Partition}
	for _, line := range c.Conf {
		name, ok := strings.CutPrefix(line, "PartitionName=")
		if name, _, _ = strings.Cut(name, " "); ok && name != "DEFAULT" {
			out = append(out, name)
		}
	}
	return out
}

// ofWholeNodes reports whether a partition hands out whole nodes only: by its own line, or by the last DEFAULT line
// before it.
func (c *Case) ofWholeNodes(partition string) bool {
	whole := false
	for _, line := range c.Conf {
		name, settings, _ := strings.Cut(strings.TrimPrefix(line, "PartitionName="), " ")
		is := strings.Contains(settings, "OverSubscribe=EXCLUSIVE") || strings.Contains(settings, "Exclusive=NODE")
		if name == "DEFAULT" {
			whole = is
		} else if name == partition && strings.HasPrefix(line, "PartitionName=") {
			return is || whole && !strings.Contains(settings, "OverSubscribe=")
		}
	}
	return whole
}

// script is a batch job's. bin is the programs' folder, state the file of the first node's GPUs.
func (j *Job) script(bin, state string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "trap 'exit 7' USR1\n%s/probe %s batch\n", bin, j.Name)
	for _, e := range j.Within {
		fmt.Fprintf(&b, "(sleep %d; %s) &\n", e.AtS, e.Command)
	}
	for i, s := range j.Steps {
		if s, ok := strings.CutPrefix(s, "idle "); ok {
			fmt.Fprintf(&b, "sleep %s\n", s)
			continue
		}
		fmt.Fprintf(&b, "srun %s %s/probe %s step%d; %s/probe %s ended%d $?\n", s, bin, j.Name, i+1, bin, j.Name, i+1)
	}
	if p, ok := apps.ByName(j.App); ok {
		fmt.Fprintf(&b, "s=%s; [ $SLURMD_NODENAME = n1 ] || s=$s-$SLURMD_NODENAME\n", state)
		fmt.Fprintf(&b, "GPUSIM_STATE=$s %s/gpusim run %s --duration-scale %g >/dev/null || exit\nexit %d\n", bin,
			j.App, float64(j.LengthS)/p.DurationS, j.Exit)
		return b.String()
	}
	// A signal reaches the shell while it waits, not while it runs a program.
	fmt.Fprintf(&b, "sleep %d & wait $!\nexit %d\n", j.LengthS, j.Exit)
	return b.String()
}

// command is what srun or salloc run.
func (j *Job) command(bin, state string) []string {
	if j.Client == "srun" {
		return []string{bin + "/probe", j.Name, "step0", "0", fmt.Sprint(j.LengthS)}
	}
	return []string{"sh", "-c", j.script(bin, state)}
}

// readCase reads the case in a file.
func readCase(file string) (*Case, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	c := &Case{}
	if err := json.Unmarshal(body, c); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}
