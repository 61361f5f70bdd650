package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Limit is one of accounting's limits on what several jobs have together.
type Limit struct {
	// Of is what it is set on, as sacctmgr modify takes it: "qos normal",
	// "account lab", "user ann where account=lab".
	Of   string
	Name string // the option, e.g. "MaxTRESPerUser"
	TRES string // e.g. "cpu=8,gres/gpu=1"; of limits that are no TRES' their number
}

// accounts reports whether accounting has a database.
func accounts(conf map[string]string) bool {
	return strings.HasSuffix(conf["AccountingStorageType"], "slurmdbd")
}

// askAccounting adds what the database knows of the bridge's user and of limits.
func askAccounting(ctx context.Context, ask Ask, f *Facts) {
	if !accounts(f.Config) {
		return
	}
	show := func(args ...string) ([][]string, bool) {
		out, err := ask(ctx, "sacctmgr", append([]string{"-n", "-P", "show"}, args...)...)
		var rows [][]string
		for line := range strings.Lines(out) {
			rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "|"))
		}
		return rows, err == nil
	}
	cluster := "cluster=" + f.Config["ClusterName"]
	if f.User != "" {
		if rows, ok := show("assoc", cluster, "user="+f.User, "format=Account"); ok {
			has := len(rows) > 0
			f.Account = &has
		}
	}
	if rows, ok := show("qos", "format=Name,GrpTRES,MaxTRESPA,MaxTRESPU,GrpJobsAccrue,MaxJobsAccruePA,MaxJobsAccruePU"); ok {
		for _, r := range rows {
			f.Limits = append(f.Limits, limitsOf("qos "+r[0], r[1:], "GrpTRES", "MaxTRESPerAccount", "MaxTRESPerUser", "GrpJobsAccrue", "MaxJobsAccruePerAccount", "MaxJobsAccruePerUser")...)
		}
	}
	if rows, ok := show("assoc", cluster, "format=Account,User,GrpTRES,GrpJobsAccrue,MaxJobsAccrue"); ok {
		for _, r := range rows {
			if len(r) < 2 {
				continue
			}
			of := "account " + r[0]
			if r[1] != "" { // otherwise the account's own
				of = "user " + r[1] + " where account=" + r[0]
			}
			f.Limits = append(f.Limits, limitsOf(of, r[2:], "GrpTRES", "GrpJobsAccrue", "MaxJobsAccrue")...)
		}
	}
}

// limitsOf are a row's limits of these names; empty ones are none.
func limitsOf(of string, row []string, names ...string) (out []Limit) {
	for i, name := range names {
		if i < len(row) && row[i] != "" {
			out = append(out, Limit{of, name, row[i]})
		}
	}
	return out
}

// accounting: a job with shares of a GPU has no GPU in accounting. Tried on 22.05.8: AllocTRES has
// gres/mps=50 and no gres/gpu, MaxTRESPerUser=gres/gpu=1 let six jobs run on two GPUs, and only
// shares are billed.
func (e *exam) accounting() {
	if !accounts(e.Config) {
		return
	}
	shares := "gres/" + e.sharing
	if tracked := e.Config["AccountingStorageTRES"]; !text.HasOption(tracked, shares) {
		var keep []string
		for w := range strings.SplitSeq(tracked, ",") {
			if strings.Contains(w, "/") && w != "fs/disk" {
				keep = append(keep, w)
			}
		}
		e.add("shares-accounted", Note, "AccountingStorageTRES has no "+shares,
			"Slurm then doesn't account for shares: in reports, bills and limits a job that shares a GPU has none. TRESBillingWeights and sacctmgr take "+shares+" only once it is listed",
			e.conf("AccountingStorageTRES="+strings.Join(append(keep, shares), ",")), run("systemctl restart slurmctld"))
		return
	}
	var of, lines []string
	for _, l := range e.Limits {
		n, is := text.TRESValue(l.TRES, "gres/gpu")
		if _, both := text.TRESValue(l.TRES, shares); !is || both {
			continue
		}
		of = append(of, l.Of)
		lines = append(lines, fmt.Sprintf("sacctmgr modify %s set %s=%s=%g", l.Of, l.Name, shares, 100*n))
	}
	if len(of) > 0 {
		s := Note
		if e.has("AccountingStorageEnforce", "limits") || e.has("AccountingStorageEnforce", "safe") {
			s = Warning
		}
		const most = 10
		more := ""
		if n := len(of) - most; n > 0 {
			of, lines, more = of[:most], lines[:most], fmt.Sprintf(" and %d more", n)
		}
		e.add("shares-limits", s, "limits on gres/gpu and none on "+shares+": "+strings.Join(of, ", ")+more,
			"Slurm counts a job that shares a GPU under "+shares+", not under gres/gpu, so these limits don't hold it. Whole GPUs and shares are counted apart; a job alone on its GPU, with all of the shares, counts 100",
			run(lines...))
	}
	for i := range e.Partitions {
		p := &e.Partitions[i]
		w, is := text.TRESValue(p.Billing, "gres/gpu")
		if _, both := text.TRESValue(p.Billing, shares); !is || both {
			continue
		}
		s, so := Note, ""
		if e.adopts(p.Name) && e.Settings.AdoptCharge == "shares" {
			s, so = Warning, ", and no job is adopted there (adopt_charge)"
		}
		e.add("shares-billed", s, "partition "+p.Name+" bills gres/gpu and not "+shares+so,
			"jobs that share a GPU are billed as if they had none, and fair share doesn't count it either. With this weight each job pays for its shares",
			e.conf(fmt.Sprintf("PartitionName=%s … TRESBillingWeights=%s,GRES/%s=%g", p.Name, p.Billing, e.sharing, w/100)))
	}
}

// adopts reports whether a rule may adopt jobs of a partition.
func (e *exam) adopts(partition string) bool {
	return slices.ContainsFunc(e.Settings.Adopt, func(r adopt.Rule) bool {
		return !r.Never && (len(r.Partitions) == 0 || slices.Contains(r.Partitions, partition))
	})
}

// adoption: where rules for unchanged jobs come to nothing. Tried on 24.11.5: in a partition with DefCpuPerGPU
// Slurm refuses to replace a request for a GPU by shares, whatever else the update sets.
func (e *exam) adoption() {
	var all []string
	everywhere := text.ParsePerGPU(e.Config["JobDefaults"]) != job.PerGPU{}
	for i := range e.Partitions {
		if p := &e.Partitions[i]; (everywhere || p.PerGPU != job.PerGPU{}) && e.adopts(p.Name) {
			all = append(all, p.Name)
		}
	}
	e.when(all != nil, "adopt-per-gpu", Warning, "no job is adopted in partition "+strings.Join(all, ", "),
		"jobs there get cores or memory by the GPU (DefCpuPerGPU, DefMemPerGPU), and Slurm refuses to turn such a job's GPU into shares. With defaults by the CPU instead, jobs are adopted, and those that name neither cores nor memory get less",
		e.conf("PartitionName=… DefMemPerCPU=…   # in place of JobDefaults=DefCpuPerGPU=…,DefMemPerGPU=…"))
}

// Request is what a job of one GPU held of its node.
type Request struct{ CPUs, MemMiB float64 }

// mostRequests bounds the jobs of the last week that are looked at, and askFor the time that accounting may take.
const (
	mostRequests = 200_000
	askFor       = 20 * time.Second
)

// askRequests adds what accounting knows of the last week's jobs of one GPU, or a part of one.
func askRequests(ctx context.Context, ask Ask, f *Facts) {
	if !accounts(f.Config) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	out, err := ask(ctx, "sacct", "-a", "-X", "-n", "-P", "-S", "now-7days", "-o", "AllocTRES")
	if err != nil {
		return
	}
	for line := range strings.Lines(out) {
		tres := strings.TrimSpace(line)
		gpus, _ := text.TRESValue(tres, "gres/gpu")
		mps, _ := text.TRESValue(tres, "gres/mps")
		shard, _ := text.TRESValue(tres, "gres/shard")
		nodes, _ := text.TRESValue(tres, "node")
		if nodes != 1 || gpus > 1 || gpus+mps+shard == 0 || len(f.Requests) == mostRequests {
			continue
		}
		cpus, _ := text.TRESValue(tres, "cpu")
		mem, _ := text.Option(tres, "mem")
		f.Requests = append(f.Requests, Request{cpus, text.ParseMiB(mem)})
	}
}

// host: jobs that share a GPU need cores and memory of its node, too.
func (e *exam) host() {
	typical, of := Request{}, "by default"
	if n := len(e.Requests); n > 0 {
		middle := func(of func(Request) float64) float64 {
			var all []float64
			for _, r := range e.Requests {
				all = append(all, of(r))
			}
			slices.Sort(all)
			return all[n/2]
		}
		typical = Request{middle(func(r Request) float64 { return r.CPUs }), middle(func(r Request) float64 { return r.MemMiB })}
		of = fmt.Sprintf("as the median of the last week's %d jobs of one GPU does", n)
	}
	kinds := map[string][]*text.Node{}
	for _, n := range e.gpus {
		gpus := float64(n.GPUCount())
		byDefault := e.perGPU(n)
		r := typical
		if len(e.Requests) == 0 {
			r = Request{float64(byDefault.CPUs), float64(byDefault.MemMiB)}
		}
		// What a job has by default the members of a group divide.
		if e.Settings.HostShare != "keep" {
			if r.CPUs > 0 && r.CPUs == float64(byDefault.CPUs) {
				r.CPUs = 1
			}
			if r.MemMiB == float64(byDefault.MemMiB) {
				r.MemMiB = 0
			}
		}
		var short []string
		if float64(n.CPUs)/gpus < 2*r.CPUs {
			short = append(short, fmt.Sprintf("%.0f of its %d CPUs", r.CPUs, n.CPUs))
		}
		if n.MemMiB/gpus < 2*r.MemMiB && strings.Contains(strings.ToUpper(e.Config["SelectTypeParameters"]), "MEMORY") {
			short = append(short, fmt.Sprintf("%.0f of its %.0f MiB", r.MemMiB, n.MemMiB))
		}
		if len(short) > 0 && sharesOf(n) > 0 {
			what := fmt.Sprintf("a node with %s has no room for two jobs a GPU where each takes %s, %s", plural(n.GPUCount(), "GPU"), strings.Join(short, " and "), of)
			kinds[what] = append(kinds[what], n)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(kinds)) {
		n := kinds[what][0]
		e.add("host-share", Warning, nodesThat(kinds[what], func(*text.Node) bool { return true })+": "+what,
			"a job that finds no cores or memory waits, however idle the GPU is. What jobs have by default the bridge divides among those that share (host_share: divide); what a user asks for it never touches, so users should ask for no more than they use",
			e.conf(fmt.Sprintf("PartitionName=%s … DefCpuPerGPU=%d DefMemPerGPU=%.0f   # for jobs that don't ask: a GPU's part of the node",
				strings.Join(n.Partitions, ","), max(1, n.CPUs/n.GPUCount()), n.MemMiB/float64(n.GPUCount()))))
	}
}

// perGPU is what a job of one GPU has by default on a node: by its first partition's settings, else the cluster's.
func (e *exam) perGPU(n *text.Node) job.PerGPU {
	for i := range e.Partitions {
		if p := &e.Partitions[i]; p.PerGPU != (job.PerGPU{}) && slices.Contains(n.Partitions, p.Name) {
			return p.PerGPU
		}
	}
	return text.ParsePerGPU(e.Config["JobDefaults"])
}
