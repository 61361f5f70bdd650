// Package slurm runs Slurm's commands; no other package does. Client polls the queue and the nodes, changes jobs and
// keeps the gate; package text parses the commands' output.
package slurm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Client talks to a cluster through Slurm's commands. Set the fields before the first call and don't change them later;
// several goroutines may call its methods.
type Client struct {
	Conf      string        // the path of slurm.conf, "" = Slurm's default
	Bin       string        // the folder of Slurm's commands, "" = found by PATH
	Prefix    []string      // put before every command, e.g. "chroot", "/srv/trixie"; PATH is then not searched
	Timeout   time.Duration // for one command. Default 10 s
	Name      string        // this daemon's name, in its gate's comment
	GPULimits bool          // read accounting's limits on whole GPUs
	// Observe is called after every command; nil = no call.
	Observe func(command string, took time.Duration, err error)
	Now     func() time.Time // default time.Now

	bin string // the folder of the commands

	config cached[map[string]string]
	parts  cached[[]text.Partition]
	limits cached[[]job.GPULimit]
	qos    cached[map[string][]string] // the QOSes that each QOS preempts

	poll   sync.Mutex // guards the fields below
	parser text.QueueParser
	buf    bytes.Buffer
	jobs   int // the number of jobs in the last poll, to size the next
	shown  map[subject]shown
	arrays map[int64]arrayLimit
}

// shown are facts about a job that scontrol shows and squeue doesn't.
type shown struct {
	gpus   map[string][]int // a running job's GPUs by node, nil = unknown
	perCPU bool             // a pending job's memory is per CPU
}

// subject identifies a job in a state for which shown holds: a running job with its start, or a pending job with its
// size. If the subject changes, scontrol is called again.
type subject struct {
	job     int64
	started int64
	cpus    int
	memMiB  float64
}

var _ job.Slurm = (*Client)(nil)

// Open finds the folder that has all of Slurm's commands, since a site may have its own squeue in another folder. It
// runs no command. sacctmgr may be missing: a cluster may have no accounting.
func (c *Client) Open() error {
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	if len(c.Prefix) > 0 {
		c.bin = filepath.Join("/", cmp.Or(c.Bin, "/usr/bin"))
		return nil
	}
	folders := []string{c.Bin}
	if c.Bin == "" {
		folders = slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(f string) bool { return !filepath.IsAbs(f) })
	}
	var missing error
	for _, folder := range folders {
		bin, err := filepath.Abs(folder)
		for _, prog := range []string{"squeue", "scontrol", "sbatch", "scancel"} {
			if err == nil {
				_, err = exec.LookPath(filepath.Join(bin, prog))
			}
		}
		if err == nil {
			c.bin = bin
			return nil
		}
		missing = cmp.Or(missing, err)
	}
	if c.Bin == "" {
		return errors.New("find squeue, scontrol, sbatch and scancel: no folder in PATH has all of them; set bin_dir")
	}
	return fmt.Errorf("find Slurm's commands: %w", missing)
}

// cached is a value that is read again when it is old. If reading fails, the old value stays.
type cached[T any] struct {
	mu sync.Mutex
	at time.Time
	v  T
}

func (k *cached[T]) get(now time.Time, every time.Duration, ask func() (T, error)) (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if age := now.Sub(k.at); !k.at.IsZero() && age >= 0 && age < every {
		return k.v, nil
	}
	v, err := ask()
	if err == nil {
		k.v, k.at = v, now
	}
	return k.v, err
}

// Poll implements job.Slurm. If the gate is misread, settings of partitions may have changed since they were read: Poll
// then reads them again and polls once more.
func (c *Client) Poll(ctx context.Context) (*job.Snapshot, error) {
	c.poll.Lock()
	defer c.poll.Unlock()
	snap, err := c.pollOnce(ctx)
	isMisread := func(g job.GateState) bool { return slices.ContainsFunc(g.Misread, text.IsOfPartitions) }
	if err != nil || !slices.ContainsFunc(snap.Gates, isMisread) || !c.parts.at.Before(snap.At) {
		return snap, err
	}
	c.parts.at = time.Time{}
	return c.pollOnce(ctx)
}

// pollOnce reads queue and nodes concurrently.
func (c *Client) pollOnce(ctx context.Context) (*job.Snapshot, error) {
	config, err := c.Config(ctx)
	if err != nil {
		return nil, err
	}
	snap := &job.Snapshot{At: c.Now(), Release: config["SLURM_VERSION"]}
	snap.Remembers, _ = text.Seconds(config["MinJobAge"])
	snap.LeastLoaded = text.HasOption(config["SelectTypeParameters"], "LL_SHARED_GRES")
	snap.GivesUsedGPUs, snap.MistakesGPUs = text.GivesUsedGPUs(snap.Release), text.MistakesGPUs(snap.Release)
	private := config["PrivateData"]
	snap.PrivateJobs, snap.PrivateUsage = text.Private(private, "jobs"), text.Private(private, "usage")
	partitions, err := c.settings(ctx, config, snap)
	if err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		snap.Nodes, err = c.Nodes(gctx)
		return err
	})
	g.Go(func() (err error) {
		snap.Jobs, snap.Gates, err = c.queue(gctx, config, nil)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	snap.OneNode = oneNode(partitions, config, snap.Nodes)
	snap.Awaited = c.parser.Awaited
	if !text.RewritesTypes(snap.Release) {
		for i := range snap.Jobs {
			if j := &snap.Jobs[i]; j.Request.Kind == job.SharedGPU {
				j.Request = text.WholeGPUs(j.Request) // this release can't rewrite the request
			}
		}
	}
	if c.parser.NoExcNodes {
		if err := c.exclude(ctx, snap); err != nil {
			return nil, err
		}
	}
	if err := c.throttle(ctx, snap); err != nil {
		return nil, err
	}
	if err := c.details(ctx, snap, config["SelectTypeParameters"]); err != nil {
		return nil, err
	}
	return snap, nil
}

// Jobs implements job.Slurm. squeue lists the named jobs only, or the whole queue if more than maxRefs are named. With
// more than one name it loads slurmctld like a poll (squeue's opts.c, 22.05 to 26.05).
func (c *Client) Jobs(ctx context.Context, refs []string) ([]job.Job, error) {
	if err := checkRefs("read", refs...); err != nil || len(refs) == 0 {
		return nil, err
	}
	c.poll.Lock()
	defer c.poll.Unlock()
	config, err := c.Config(ctx)
	if err != nil {
		return nil, err
	}
	var only []string
	if len(refs) <= maxRefs {
		only = []string{"--jobs=" + strings.Join(refs, ",")}
	}
	jobs, _, err := c.queue(ctx, config, only)
	if errors.Is(err, job.ErrNoJob) {
		return nil, nil // all of the jobs are gone
	}
	return jobs, err
}

// queue reads the queue. extra are more arguments for squeue.
func (c *Client) queue(
	ctx context.Context, config map[string]string, extra []string,
) ([]job.Job, []job.GateState, error) {
	owners := gateOwners(config)
	c.parser.Release = config["SLURM_VERSION"]
	c.parser.Ours = func(uid uint32) bool { return owners[uid] }
	for {
		nonce := text.NewNonce()
		out, stderr, err := c.run(ctx, command{
			prog: "squeue", out: &c.buf, mark: nonce,
			args: append([]string{"--noheader", "--all", "--array", "--noconvert", "--local", "--sort=-p"}, extra...),
			env:  []string{"SQUEUE_FORMAT2=" + c.parser.Format(nonce)},
		})
		if err != nil {
			return nil, nil, err
		}
		if !c.parser.NoExcNodes && text.LacksExcNodes(stderr) {
			c.parser.NoExcNodes = true // see exclude
			continue
		}
		jobs, gates, err := c.parser.Parse(make([]job.Job, 0, c.jobs+c.jobs/8+16), out, nonce)
		if err != nil && stderr != "" {
			err = fmt.Errorf("%w (%s)", err, text.OneLine(stderr))
		}
		c.jobs = max(len(jobs), c.jobs/2) // Jobs may read only a few, so the size shrinks slowly
		return jobs, gates, err
	}
}

// gateOwners returns the users that may own the gate: SlurmUser, root, and the user that the bridge runs as. Another
// user's job is not the gate, even with the gate's name.
func gateOwners(config map[string]string) map[uint32]bool {
	owners := map[uint32]bool{0: true, uint32(os.Geteuid()): true}
	if _, uid, ok := text.User(config["SlurmUser"]); ok {
		owners[uid] = true
	}
	return owners
}

// exclude fills in the nodes that pending jobs exclude. On 22.05 they need a second squeue with another format.
func (c *Client) exclude(ctx context.Context, snap *job.Snapshot) error {
	var excluded map[int64]string
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		if j.State != job.Pending || j.Request.Kind == job.WholeGPU {
			continue
		}
		if excluded == nil {
			out, _, err := c.run(ctx, command{name: "squeue excluded", prog: "squeue", mark: "\n", args: []string{
				"--noheader", "--all", "--local", "--array", "--states=PENDING", "--format=" + text.ExcludedFormat,
			}})
			if err != nil {
				return err
			}
			excluded = text.ParseExcluded(out)
		}
		j.ExcNodes = excluded[j.ID]
		if j.ExcNodes == text.ExcludesTooMuch {
			j.ExcNodes = ""
			j.TooLong = true
		}
	}
	return nil
}

// throttle fills in how many tasks of each array may run at a time. squeue shows this only without --array.
func (c *Client) throttle(ctx context.Context, snap *job.Snapshot) error {
	waits := func(j job.Job) bool { return j.ArrayID != 0 && j.State == job.Pending && j.Dependency.List != nil }
	if !slices.ContainsFunc(snap.Jobs, waits) {
		return nil
	}
	out, _, err := c.run(ctx, command{name: "squeue arrays", prog: "squeue", mark: "\n", args: []string{
		"--noheader", "--all", "--local", "--states=PENDING", "--format=" + text.ArraysFormat,
	}})
	limits := text.ParseArrayLimits(out)
	arrays := map[int64]arrayLimit{}
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		known, done := arrays[j.ArrayID]
		if !done {
			known = c.arrays[j.ArrayID]
			known.unseen++
			if most := limits[j.ArrayID]; most > 0 {
				known = arrayLimit{most: most}
			} else if known.unseen > mostUnseen {
				known = arrayLimit{}
			}
			arrays[j.ArrayID] = known
		}
		j.ArrayLimit = known.most
	}
	c.arrays = arrays
	return err
}

// arrayLimit is how many tasks of an array may run at a time, and how many polls in a row haven't shown it. Slurm 22.05
// leaves it out for a moment; an owner may take it away.
type arrayLimit struct{ most, unseen int }

// mostUnseen is the number of polls for which a limit counts that they don't show.
const mostUnseen = 3

// mostAsked bounds the pending jobs about which one poll calls scontrol.
const mostAsked = 500

// details fills in what squeue doesn't show: the GPUs of running jobs, and which pending jobs have memory per CPU: it
// grows if Slurm allocates more CPUs than they request. One scontrol shows all new jobs. A second one shows again the
// jobs with lines that look like Slurm's but may be a user's. scontrol's lines of a job are right for each node and
// each kind of request on 22.05 to 26.05; a node's GresUsed counts GPUs instead of shares up to 23.02 and names no job.
// A job on a node with one GPU needs no scontrol. Until scontrol has answered, memory counts as per CPU, which is more.
func (c *Client) details(ctx context.Context, snap *job.Snapshot, params string) error {
	gpus := make(map[string]int, len(snap.Nodes))
	for i := range snap.Nodes {
		gpus[snap.Nodes[i].Name] = snap.Nodes[i].GPUs
	}
	grows := growing(snap.Nodes, params)
	subjectOf := func(j *job.Job) (s subject, needed bool) {
		if j.State != job.Pending {
			return subject{job: j.ID, started: j.Start.Unix()}, j.NumNodes > 1 || gpus[j.Nodes] > 1
		}
		return subject{job: j.ID, cpus: j.CPUs, memMiB: j.HostMemMiB},
			j.Request.Kind != job.WholeGPU && j.HostMemMiB > 0 && grows(j.CPUs)
	}
	all := map[subject]shown{}
	var asked []*job.Job
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		of, needed := subjectOf(j)
		if _, done := all[of]; !needed || done { // tasks of an array may have one subject
			continue
		}
		s, known := c.shown[of]
		if !known && j.State == job.Pending && len(asked) >= mostAsked {
			continue
		}
		all[of] = s
		if !known {
			asked = append(asked, j)
		}
	}
	answers, err := c.showJobs(ctx, asked, "--all", "-d")
	var unclear []*job.Job
	var detail [][]byte
	for i, j := range asked {
		of, _ := subjectOf(j)
		if i >= len(answers) {
			delete(all, of) // the next poll tries again
			continue
		}
		where, ok := text.ParseDetail(answers[i], nil, j.Nodes)
		if !ok && j.State != job.Pending {
			unclear = append(unclear, j)
			detail = append(detail, answers[i])
		}
		all[of] = shown{where, text.MemPerCPU(answers[i])}
	}
	plain, errPlain := c.showJobs(ctx, unclear, "--all")
	for i, j := range unclear {
		of, _ := subjectOf(j)
		delete(all, of)
		if i >= len(plain) {
			continue
		}
		if where, ok := text.ParseDetail(detail[i], plain[i], j.Nodes); ok {
			all[of] = shown{gpus: where}
		}
	}
	c.shown = all
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		of, needed := subjectOf(j)
		s, known := all[of]
		switch {
		case j.State == job.Pending:
			j.MemPerCPU = needed && (s.perCPU || !known)
		case needed && j.NumNodes > 1:
			j.ByNode = s.gpus
		case needed:
			j.GPUs = s.gpus[j.Nodes]
		case gpus[j.Nodes] == 1:
			j.GPUs = []int{0}
		}
	}
	return errors.Join(err, errPlain)
}

// growing returns whether some node allocates more CPUs to a job than it requests, and memory with them.
func growing(nodes []job.Node, params string) func(cpus int) bool {
	grows := map[int]bool{}
	return func(cpus int) bool {
		g, seen := grows[cpus]
		if !seen {
			// With CR_CPU and CR_CPU_MEMORY memory follows the CPUs requested.
			g = !text.HasOption(params, "CR_CPU") && !text.HasOption(params, "CR_CPU_MEMORY") &&
				slices.ContainsFunc(nodes, func(n job.Node) bool { return n.CPUsPerAlloc > 1 && n.Allocates(cpus) > cpus })
			grows[cpus] = g
		}
		return g
	}
}

// showJobs returns scontrol's answers about jobs, in their order; if scontrol ends early, there are fewer. scontrol
// reads commands from its standard input; a mark that users can't know separates the answers.
func (c *Client) showJobs(ctx context.Context, jobs []*job.Job, args ...string) ([][]byte, error) {
	if len(jobs) == 0 {
		return nil, nil
	}
	nonce := text.NewNonce()[1:]
	var in strings.Builder
	for _, j := range jobs {
		fmt.Fprintf(&in, "show job %s\nshow hostnames %s\n", j.Ref, nonce)
	}
	out, _, err := c.run(ctx, command{name: "scontrol show job", prog: "scontrol", args: args, stdin: in.String()})
	if err != nil && ctx.Err() != nil {
		return nil, err
	}
	answers := bytes.Split(out, []byte("\n"+nonce+"\n"))
	return answers[:min(len(jobs), len(answers)-1)], nil
}

// configEvery is how long the configuration stays cached.
const configEvery = 5 * time.Minute

// Config returns slurmctld's configuration, at most configEvery old; see text.ParseConfig.
func (c *Client) Config(ctx context.Context) (map[string]string, error) {
	return c.config.get(c.Now(), configEvery, func() (map[string]string, error) {
		out, err := c.ask(ctx, "scontrol", "show", "config")
		if err != nil {
			return nil, err
		}
		return text.ParseConfig(out), nil
	})
}

// MailUser returns a job's --mail-user; "" = the job has none, or no --mail-type, or ended more than MinJobAge ago.
func (c *Client) MailUser(ctx context.Context, ref string) (string, error) {
	out, err := c.ask(ctx, "scontrol", "--all", "show", "job", ref)
	if errors.Is(err, job.ErrNoJob) {
		return "", nil
	}
	return text.ParseMailUser(out), err
}

// Release returns slurmctld's version, e.g. "22.05.8".
func (c *Client) Release(ctx context.Context) (string, error) {
	config, err := c.Config(ctx)
	return config["SLURM_VERSION"], err
}

// Show runs one of Slurm's read-only commands and returns its output.
func (c *Client) Show(ctx context.Context, program string, args ...string) (string, error) {
	out, err := c.ask(ctx, program, args...)
	return string(out), err
}
