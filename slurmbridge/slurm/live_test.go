package slurm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm"
)

// live starts a private Slurm and returns a client that runs as its SlurmUser, as the bridge does.
func live(tb testing.TB, o slurmtest.Options) (*slurmtest.Cluster, *slurm.Client) {
	tb.Helper()
	cluster := slurmtest.New(tb, o)
	prefix := must.Get(cluster.Prefix("slurm"))(tb)
	if len(prefix) == 0 {
		u := must.Get(user.Lookup("slurm"))(tb)
		prefix = []string{"/usr/bin/setpriv", "--reuid=" + u.Uid, "--regid=" + u.Gid, "--clear-groups"}
	}
	c := &slurm.Client{Conf: cluster.Conf(), Prefix: prefix, Timeout: time.Minute} // of a busy machine
	must.OK(tb, c.Open())
	return cluster, c
}

// impatient makes Slurm look at its queue every second or two, so that tests
// needn't wait half a minute for what the defaults do in half a minute.
const impatient = "sched_interval=2,bf_interval=1"

func submit(tb testing.TB, c *slurmtest.Cluster, args ...string) string {
	tb.Helper()
	return must.Get(c.Submit(context.Background(), "nobody", "sleep 300",
		append([]string{"--output=/dev/null", "--time=10"}, args...)...))(tb)
}

func poll(tb testing.TB, c *slurm.Client) (*job.Snapshot, map[string]*job.Job) {
	tb.Helper()
	s := must.Get(c.Poll(context.Background()))(tb)
	by := map[string]*job.Job{}
	for i := range s.Jobs {
		by[s.Jobs[i].Ref] = &s.Jobs[i]
	}
	return s, by
}

// eventually looks until a job is as wanted, and fails when it isn't in time.
func eventually(tb testing.TB, c *slurm.Client, what string, ok func(map[string]*job.Job) bool) {
	tb.Helper()
	var jobs map[string]*job.Job
	if !slurmtest.Wait(context.Background(), time.Minute, func() bool { _, jobs = poll(tb, c); return ok(jobs) }) {
		for _, j := range jobs {
			tb.Logf("%+v", *j)
		}
		tb.Fatalf("in vain: %s", what)
	}
}

func running(ref ...string) func(map[string]*job.Job) bool {
	return func(jobs map[string]*job.Job) bool {
		return !slices.ContainsFunc(ref, func(r string) bool { return jobs[r] == nil || jobs[r].State != job.Running })
	}
}

func ptr(s string) *string { return &s }

func update(tb testing.TB, c *slurm.Client, u job.Update) error {
	tb.Helper()
	return c.UpdateAll(tb.Context(), []job.Update{u})[0]
}

// A job that still asks for gpu:shared, as it does without a job_submit script, is
// called shared where Slurm lets its request be rewritten, and only there.
func TestSharedAsAsked(t *testing.T) {
	t.Parallel()
	cluster, c := live(t, slurmtest.Options{Cards: [][]string{{"shared"}}})
	gate := newGate(t, c)
	for arg, perNode := range map[string]bool{
		"--gres=gpu:shared": true, "--gpus-per-node=shared:1": true,
		"--gpus=shared:1": false, "--gpus-per-task=shared:1": false,
	} {
		id := submit(t, cluster, arg, "--ntasks=1", "--hold")
		_, jobs := poll(t, c)
		before := *jobs[id]
		err := update(t, c, job.Update{Jobs: []string{id}, Gres: ptr("mps:50"), Dependency: ptr("after:" + gate)})
		_, jobs = poll(t, c)
		after := *jobs[id]
		if before.Request.Kind == job.SharedGPU {
			if !perNode || err != nil || after.Request.Kind != job.Shares || after.Request.Count != 50 ||
				!after.Dependency.Only("after", gate) {
				t.Errorf("%s: %+v became %+v: %v", arg, before.Request, after.Request, err)
			}
			continue
		}
		if before.Request.Kind != job.WholeGPU || perNode && !strings.HasPrefix(cluster.Release, "22.") ||
			!errors.Is(err, job.ErrRefused) {
			t.Errorf("%s: %+v, %v", arg, before.Request, err)
		}
		must.Equal(t, after.Request, before.Request, "after a refused update: %s", arg)
		t.Logf("%s: after a refused update it depends on %q", arg, after.Dependency.Raw)
	}
}

// Jobs that wait, run, ended and failed, an array's task, one that never was; and one that is run again.
func TestHowJobsAreDescribed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cluster, c := live(t, slurmtest.Options{Scheduler: impatient})
	run := func(script string, args ...string) string {
		t.Helper()
		return must.Get(cluster.Submit(ctx, "nobody", script,
			append([]string{"--output=/dev/null", "--time=10"}, args...)...))(t)
	}
	good, bad, final := run("exit 0"), run("exit 3"), run("exit 1", "--no-requeue")
	array, waits := run("exit 0", "--array=1-2"), run("exit 0", "--begin=now+1hour")
	describe := func(refs ...string) map[string]job.Description {
		t.Helper()
		got := must.Get(c.Describe(ctx, refs))(t)
		for ref, d := range got {
			d.Start, d.End = time.Time{}, time.Time{}
			got[ref] = d
		}
		return got
	}
	want := map[string]job.Description{
		good: {State: "COMPLETED", Requeue: true}, bad: {State: "FAILED", Requeue: true}, final: {State: "FAILED"},
		array + "_2": {State: "COMPLETED", Requeue: true}, waits: {State: "PENDING", Requeue: true},
	}
	var got map[string]job.Description
	slurmtest.Wait(ctx, time.Minute, func() bool {
		got = describe(append(slices.Collect(maps.Keys(want)), "99999")...)
		return reflect.DeepEqual(got, want)
	})
	must.Equal(t, got, want)
	must.Equal(t, len(describe("99998", "99999")), 0, "jobs that never were")
	must.OK(t, c.Requeue(ctx, bad))
	must.Equal(t, describe(bad)[bad].State, "PENDING", "after it was requeued")
	must.Fail(t, c.Requeue(ctx, final), "", "a job that mustn't be run again")
	must.Is(t, c.Requeue(ctx, "99999"), job.ErrNoJob, "a job that never was")
}

// SlurmUser may raise the limits of running jobs, those of array tasks too, past its partition's MaxTime and
// into reservations: both are read, and respecting them is the caller's business.
func TestTimeLimitsOfRunningJobs(t *testing.T) {
	t.Parallel()
	cluster, c := live(t, slurmtest.Options{Scheduler: impatient})
	if b, err := c.Bounds(t.Context()); err != nil || len(b.Reservations) != 0 || b.MaxTime[slurmtest.Partition] != 0 ||
		len(b.MaxTime) != 1 {
		t.Fatalf("%+v, %v", b, err)
	}
	since := time.Now().Truncate(time.Second)
	// in reports whether a time is so long after one since then.
	in := func(at time.Time, d time.Duration) bool {
		return !at.Before(since.Add(d)) && !at.After(time.Now().Add(d))
	}
	a := submit(t, cluster, "--gres=mps:20", "--deadline=now+2hours")
	task := submit(t, cluster, "--gres=mps:20", "--array=4-5") + "_5"
	eventually(t, c, "both run", running(a, task))
	for _, args := range [][]string{
		{"update", "PartitionName=" + slurmtest.Partition, "MaxTime=15"},
		{
			"create", "reservation", "ReservationName=maint", "StartTime=now+12minutes", "Duration=60", "Nodes=n1", "Users=root",
			"Flags=MAINT,IGNORE_JOBS",
		},
	} {
		must.Get(cluster.Run(t.Context(), "scontrol", args...))(t)
	}
	b, err := c.Bounds(t.Context())
	if err != nil || len(b.Reservations) != 1 || b.MaxTime[slurmtest.Partition] != 15*time.Minute {
		t.Fatalf("%+v, %v", b, err)
	}
	if r := b.Reservations[0]; r.Name != "maint" || !r.Holds("n1") || r.Holds("n2") || r.End.Sub(r.Start) != time.Hour ||
		!in(r.Start, 12*time.Minute) {
		t.Errorf("%+v", r)
	}
	must.OK(t, update(t, c, job.Update{Jobs: []string{a, task}, TimeLimit: 25 * time.Minute}))
	for state, closed := range map[string]bool{"DOWN": true, "DRAIN": false, "INACTIVE": true, "UP": false} {
		must.Get(cluster.Run(t.Context(), "scontrol", "update", "PartitionName="+slurmtest.Partition, "State="+state))(t)
		must.Equal(t, must.Get(c.Bounds(t.Context()))(t).Closed[slurmtest.Partition], closed, state)
	}
	_, jobs := poll(t, c)
	for _, ref := range []string{a, task} {
		must.Equal(t, jobs[ref].TimeLimit, 25*time.Minute, "job %s", ref)
	}
	if !in(jobs[a].Deadline, 2*time.Hour) || !jobs[task].Deadline.IsZero() {
		t.Errorf("deadlines at %v, %v", jobs[a].Deadline, jobs[task].Deadline)
	}
	must.Is(t, update(t, c, job.Update{Jobs: []string{"4294900000"}, TimeLimit: time.Minute}), job.ErrNoJob,
		"of a job that isn't there")
}

// Slurm allocates whole cores, and memory by the CPU for all their threads: as much as is predicted
// while a job is pending.
func TestWholeCores(t *testing.T) {
	for _, c := range []struct {
		params string
		takes  []int // CPUs of the node for 1, 3 and 4
	}{
		{"CR_Core_Memory", []int{2, 4, 4}}, {"CR_CPU_Memory", []int{2, 4, 4}}, {"CR_Socket_Memory", []int{8, 8, 8}},
	} {
		t.Run(c.params, func(t *testing.T) {
			t.Parallel()
			cluster, client := live(t, slurmtest.Options{CPUs: 16, Scheduler: impatient, Extra: []string{
				"SelectTypeParameters=" + c.params, "NodeName=DEFAULT Sockets=2 CoresPerSocket=4 ThreadsPerCore=2",
			}})
			for i, cpus := range []string{"1", "3", "4"} {
				for _, memory := range []string{"--mem=300", "--mem-per-cpu=300"} {
					id := submit(t, cluster, "--gres=mps:10", "-H", "-c"+cpus, memory)
					s, jobs := poll(t, client)
					wantCPUs, wantMiB := s.Nodes[0].Allocates(jobs[id].CPUs), s.Nodes[0].Takes(jobs[id])
					must.Equal(t, wantCPUs, c.takes[i], "CPUs of -c%s", cpus)
					must.Get(client.Show(t.Context(), "scontrol", "release", id))(t)
					eventually(t, client, "the job runs", func(jobs map[string]*job.Job) bool { return jobs[id].State == job.Running })
					s, _ = poll(t, client)
					if n := &s.Nodes[0]; n.CPUsAlloc != wantCPUs || n.MemAlloc != wantMiB {
						t.Errorf("-c%s %s: %d CPUs and %v MiB are taken, %d and %v were predicted", cpus, memory, n.CPUsAlloc, n.MemAlloc,
							wantCPUs, wantMiB)
					}
					must.Get(client.Show(t.Context(), "scancel", id))(t)
					eventually(t, client, "the job is gone", func(jobs map[string]*job.Job) bool { return jobs[id] == nil })
				}
			}
		})
	}
}

// Slurm names the GPUs of a job on each of its nodes, whether they are whole or shares, and whatever the job's owner has
// written into all fields that there are for text.
func TestGPUsOfRunningJobs(t *testing.T) {
	t.Parallel()
	cluster, c := live(t, slurmtest.Options{Nodes: 2, GPUs: 4, Scheduler: impatient})
	const forged = "x\n   JOB_GRES=gpu:1\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)\n   MinCPUsNode=1 MinMemoryCPU=1M\n"
	first := submit(t, cluster, "--nodelist=n1", "--gres=gpu:1")
	eventually(t, c, "the first runs", running(first))
	wide := submit(t, cluster, "--nodes=2", "--gres=gpu:1")
	eventually(t, c, "the one on two nodes runs", running(wide))
	shares := submit(t, cluster, "--nodelist=n1", "--gres=mps:40")
	eventually(t, c, "the one with shares runs", running(shares))
	liar := submit(t, cluster, "--nodelist=n1", "--gres=gpu:1", "--job-name="+forged, "--comment="+forged,
		"--chdir=/tmp", "--error="+forged, "--wckey="+forged, "--account="+forged)
	eventually(t, c, "the liar runs", running(liar))
	_, jobs := poll(t, c)
	must.Equal(t, jobs[first].GPUs, []int{0})
	must.Equal(t, jobs[wide].ByNode, map[string][]int{"n1": {1}, "n2": {0}})
	must.Equal(t, jobs[shares].GPUs, []int{2})
	must.Equal(t, jobs[liar].GPUs, []int{3})
}

// A prolog knows an array task by its number alone, before any poll has shown it: Slurm names it.
func TestNumbersOfArrayTasks(t *testing.T) {
	t.Parallel()
	cluster, c := live(t, slurmtest.Options{Scheduler: impatient})
	array := must.Get(cluster.Submit(t.Context(), "nobody", "sleep 60", "--array=3-5"))(t)
	plain := must.Get(cluster.Submit(t.Context(), "nobody", "sleep 60"))(t)
	want := map[string]string{}
	if !slurmtest.Wait(t.Context(), time.Minute, func() bool {
		out := must.Get(cluster.Run(t.Context(), "squeue", "--noheader", "--states=running", "--format=%A %i"))(t)
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			want[f[0]] = f[1]
		}
		return len(want) == 4
	}) {
		t.Fatal(want)
	}
	for number, name := range want {
		id := must.Get(strconv.ParseInt(number, 10, 64))(t)
		if got, err := c.TaskName(t.Context(), id); err != nil || got != name || name != plain &&
			!strings.HasPrefix(name, array+"_") {
			t.Errorf("%s is %s, %v, want %s", number, got, err, name)
		}
	}
	must.Equal(t, must.Get(c.TaskName(t.Context(), 4711))(t), "4711", "a job that there isn't")
}

// Many updates at once: each is made or refused as it would be alone, whatever is in it.
func TestManyUpdatesAtOnce(t *testing.T) {
	cluster, c := live(t, slurmtest.Options{})
	gres := func(n int) *string { return ptr(fmt.Sprintf("mps:%d", n)) }
	comments := []string{
		"slurmbridge: [mps:50 on n1, was mps:100] isn't alone", "one", "two", "slurmbridge: three",
		`slurmbridge: a "quoted" word, | and an odd "`, "slurmbridge: größer als ein Byte",
	}
	type seen struct {
		count   int
		comment string
	}
	want := map[string]seen{}
	var all []job.Update
	for i := range 60 {
		ref := submit(t, cluster, "--hold", "--gres=mps:100")
		want[ref] = seen{10 + i%40, comments[i%6]}
		all = append(all, job.Update{
			Jobs: []string{ref}, Gres: gres(10 + i%40), ReqNodes: ptr("n1"), AdminComment: ptr(comments[i%6]),
		})
	}
	array := submit(t, cluster, "--hold", "--array=0-5", "--gres=mps:100")
	tasks := []string{array + "_0", array + "_1", array + "_3"}
	const both, some = "slurmbridge: both", "slurmbridge: tasks of an array"
	one, two := all[0].Jobs[0], all[1].Jobs[0]
	all = append(all, job.Update{Jobs: tasks, Gres: gres(33), ReqNodes: ptr("n1"), AdminComment: ptr(some)})
	n := len(all)
	all = append(all,
		job.Update{Jobs: []string{"9999"}, Gres: gres(5)},
		job.Update{Jobs: []string{array + "_4"}, Gres: gres(44), ReqNodes: ptr("nowhere")},
		job.Update{Jobs: []string{array + "_5"}, Gres: ptr("mps:1 JobId=2")},
		job.Update{Jobs: []string{array + "_2", array + "_99"}, Gres: gres(22), ReqNodes: ptr("n1")})
	again := job.Update{Jobs: []string{one, "9998", two}, AdminComment: ptr(both)}
	errs := append(c.UpdateAll(t.Context(), all), update(t, c, again))
	all = append(all, again)
	must.OK(t, errs[:n]...)
	for i, kind := range []error{job.ErrNoJob, job.ErrRefused, job.ErrRefused, job.ErrNoJob, job.ErrNoJob} {
		must.Is(t, errs[n+i], kind, "update of %v", all[n+i].Jobs)
	}
	want[one], want[two] = seen{want[one].count, both}, seen{want[two].count, both}
	for task, count := range map[string]int{"_0": 33, "_1": 33, "_2": 22, "_3": 33, "_4": 100, "_5": 100} {
		want[array+task] = seen{count, map[bool]string{true: some}[count == 33]}
	}
	_, jobs := poll(t, c)
	for ref, w := range want {
		must.Equal(t, seen{jobs[ref].Request.Count, jobs[ref].AdminComment}, w, "job %s", ref)
	}
	// Read again one by one, or together with a job that never was, they are the same.
	for _, refs := range [][]string{{one}, {array + "_3"}, {one, array + "_3", array + "_4", "9999"}} {
		got := map[string]job.Job{}
		for _, j := range must.Get(c.Jobs(t.Context(), refs))(t) {
			got[j.Ref] = j
		}
		for _, ref := range refs {
			if was := jobs[ref]; was != nil {
				must.Equal(t, got[ref], *was, "job %s, read again with %v", ref, refs)
			}
		}
	}
	must.Equal(t, must.Get(c.Jobs(t.Context(), []string{"9999"}))(t), nil, "a job that never was")
}

// newGate creates a gate of an hour.
func newGate(t testing.TB, c *slurm.Client) string {
	t.Helper()
	id, _, err := c.CreateGate(t.Context(), time.Hour, nil)
	must.OK(t, err)
	return id
}

// Slurm's commands print no numbers: each error that a plugin returns for a change is known by its text, whatever words
// the plugin adds, and is the job's that it is about.
func TestErrorsOfChanges(t *testing.T) {
	t.Parallel()
	const site = `
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify(job)
   if not job.admin_comment then return slurm.SUCCESS end
   slurm.log_user("not here,\nUnable to contact slurm controller (connect failure)\nInvalid job id specified for job 7 (no")
   return tonumber(job.admin_comment)
end
return slurm.SUCCESS
`
	script := filepath.Join(t.TempDir(), "job_submit.lua")
	must.OK(t, os.WriteFile(script, []byte(site), 0o600))
	cluster, c := live(t, slurmtest.Options{Lua: script})
	names := map[int][]string{} // a release may have given a number to another error
	byText := map[string][]string{}
	for line := range strings.Lines(string(must.Get(os.ReadFile("text/errno.tsv"))(t))) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) == 3 {
			byText[f[2]] = f // of errors with one text the commands' last is meant
		}
	}
	for _, f := range byText {
		n := must.Get(strconv.Atoi(f[0]))(t)
		names[n] = append(names[n], f[1])
	}
	numbers := slices.Sorted(maps.Keys(names))
	array := submit(t, cluster, "--hold", fmt.Sprintf("--array=0-%d", len(numbers)))
	var all []job.Update
	for i, n := range append(numbers, 0) { // the last one is made
		number := strconv.Itoa(n)
		all = append(all, job.Update{Jobs: []string{fmt.Sprint(array, "_", i)}, AdminComment: &number})
	}
	errs := c.UpdateAll(t.Context(), all)
	must.OK(t, errs[len(numbers)])
	known := 0
	for i, n := range numbers {
		ref := all[i].Jobs[0]
		var said job.JobErrors
		errors.As(errs[i], &said)
		got := said[ref]
		switch {
		case slices.Contains(names[n], got.Code):
			known++
		case got.Code != job.CodeOther || !strings.HasPrefix(got.Text, "Unknown error"): // of a newer release
			t.Errorf("%d, %v: %+v", n, names[n], got)
		}
	}
	if known < 180 {
		t.Errorf("%d errors known of %d", known, len(numbers))
	}
}
