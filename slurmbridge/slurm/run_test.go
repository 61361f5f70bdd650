package slurm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// releases are those whose output was recorded, by testdata/record.sh.
var releases = []string{"22.05", "24.11", "26.05"}

func recorded(t testing.TB, release, name string) []byte {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join("testdata", release, name)))(t)
	return b
}

// fake is a client whose commands are one shell script. It is called as squeue, scontrol, … and finds its name in $0.
func fake(t *testing.T, script string) *Client {
	t.Helper()
	bin := t.TempDir()
	for _, prog := range []string{"squeue", "scontrol", "sbatch", "scancel", "sacctmgr"} {
		must.OK(t, os.WriteFile(filepath.Join(bin, prog), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	c := &Client{Bin: bin, Timeout: 20 * time.Second}
	must.OK(t, c.Open())
	return c
}

// On a busy machine a command's output may be read long after the command has ended.
func TestLateOutputCounts(t *testing.T) {
	c := fake(t, "(sleep 1.5; echo late) & exit 0")
	out, _, err := c.run(t.Context(), command{name: "x", prog: "squeue"})
	must.OK(t, err)
	must.Equal(t, string(out), "late\n")
}

func TestCleanEnvironment(t *testing.T) {
	t.Setenv("SQUEUE_FORMAT", "%i")
	t.Setenv("SLURM_TIME_FORMAT", "relative")
	t.Setenv("SBATCH_PARTITION", "other")
	t.Setenv("TZ", "Asia/Seoul")
	c := fake(t, "env; pwd")
	c.Conf = "/etc/x/slurm.conf"
	out, _, err := c.run(context.Background(), command{name: "x", prog: "squeue", env: []string{"SQUEUE_FORMAT2=f"}})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	for _, want := range []string{
		"LC_ALL=C", "TZ=UTC", "SLURM_TIME_FORMAT=%s", "SLURM_CONF=/etc/x/slurm.conf",
		"SQUEUE_FORMAT2=f", "/",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, v := range got {
		key, _, _ := strings.Cut(v, "=")
		if !slices.Contains([]string{
			"LC_ALL", "TZ", "SLURM_TIME_FORMAT", "SLURM_CONF", "SQUEUE_FORMAT2", "PATH", "PWD",
			"OLDPWD", "SHLVL", "_", "/",
		}, key) {
			t.Errorf("%s got through", v)
		}
	}
}

// A command that hangs is killed with all it started, at its own deadline.
func TestTimeoutKillsTheGroup(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	c := fake(t, "sleep 600 & echo $! >"+pids+"; wait")
	var seen error
	c.Observe = func(_ string, took time.Duration, err error) { seen = err }
	var b []byte
	for c.Timeout = time.Second; len(b) == 0; c.Timeout *= 2 { // until it has started something in time
		_, err := c.Release(context.Background())
		if !errors.Is(err, job.ErrDown) || !errors.Is(seen, job.ErrDown) {
			t.Fatalf("%v, observed %v", err, seen)
		}
		b, _ = os.ReadFile(pids)
	}
	pid := must.Get(strconv.Atoi(strings.TrimSpace(string(b))))(t)
	for range 10000 {
		if state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err != nil ||
			strings.Contains(string(state), ") Z ") {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	t.Error("a child outlived its command")
}

func TestCancelledIsNotDown(t *testing.T) {
	c := fake(t, "exec sleep 600")
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := c.Release(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, job.ErrDown) {
		t.Error(err)
	}
}

func TestOutputIsLimited(t *testing.T) {
	c := fake(t, "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done")
	if _, _, err := c.run(context.Background(), command{name: "x", prog: "squeue", max: 1 << 16}); !errors.Is(err,
		errLimit) {
		t.Error(err)
	}
	c = fake(t, "yes complaint | head -c 1000000 >&2; exit 1")
	_, stderr, err := c.run(context.Background(), command{name: "x", prog: "squeue"})
	if err == nil || len(stderr) > maxStderr || len(err.Error()) > 2000 {
		t.Errorf("%d bytes, %.100v", len(stderr), err)
	}
}

// A site's own squeue, in a folder without Slurm's other commands, is passed over.
func TestFolderOfTheCommands(t *testing.T) {
	all, own := fake(t, "true").bin, t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(own, "squeue"), []byte("#!/bin/sh\n"), 0o755))
	for _, x := range []struct{ bin, path, want string }{
		{"", own + ":" + all, all}, {all, own, all}, {own, all, ""}, {"", own, ""}, {"", "", ""},
	} {
		t.Setenv("PATH", x.path)
		c := &Client{Bin: x.bin}
		if err := c.Open(); c.bin != x.want || (err == nil) != (x.want != "") {
			t.Errorf("bin_dir %q, PATH %q: %q, not %q: %v", x.bin, x.path, c.bin, x.want, err)
		}
	}
}

// What the commands really said, and what it means.
func TestErrorsRecorded(t *testing.T) {
	for _, release := range releases {
		var name, said string
		for line := range strings.Lines(string(recorded(t, release, "errors"))) {
			if cmd, is := strings.CutPrefix(line, "$ scontrol "); is {
				name, said = strings.TrimSpace(cmd), ""
				continue
			}
			if !strings.HasPrefix(line, "exit ") {
				said += line
				continue
			}
			want := job.ErrRefused
			switch {
			case name == "show config":
				want = job.ErrDown
			case strings.Contains(name, "999999"), strings.Contains(name, "_77"), strings.Contains(name, "StartTime"):
				want = job.ErrNoJob
			}
			must.Is(t, text.ErrorKind(said), want, "%s: %s: %q", release, name, said)
			if jobs := text.UpdateErrors(said); name == "update JobId=22_2 ReqNodeList=nowhere" &&
				jobs["22_2"] != "Invalid node name specified" ||
				strings.HasSuffix(name, "999999 Nice=1") && jobs["999999"] != "Invalid job id specified" {
				t.Errorf("%s: %s: %v", release, name, jobs)
			}
		}
	}
	for said, want := range map[string]error{
		"Invalid job id specified for job 7\nJob dependency problem for job 8\n":   job.ErrRefused,
		"Job is no longer pending execution for job 7\n":                           job.ErrNoJob,
		"Invalid job id specified for job 7\nslurm_update error: Socket timed out": job.ErrDown,
		"": job.ErrRefused,
	} {
		must.Is(t, text.ErrorKind(said), want, said)
	}
}

// recordCalls keeps what the fake commands were called with, a line each: in one write, since several run at once.
const recordCalls = `line=$(basename $0); for a; do line="$line|$a"; done; echo "$line" >>LOG; `

func recordingFake(t *testing.T, script string) (*Client, func() []string) {
	log := filepath.Join(t.TempDir(), "log")
	c := fake(t, strings.ReplaceAll(recordCalls, "LOG", log)+script)
	return c, func() []string {
		b, _ := os.ReadFile(log)
		_ = os.Remove(log)
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
}

func ptr(s string) *string { return &s }

// What is asked of Slurm, and what comes of its answers. The tasks of an array are changed in their order, since Slurm
// starts them so; a held gate is released before it gets its priority, which would not release it.
func TestWhatIsAskedOfSlurm(t *testing.T) {
	update := func(u job.Update) func(c *Client) (string, error) {
		return func(c *Client) (string, error) { return "", c.UpdateAll(t.Context(), []job.Update{u})[0] }
	}
	create := func(c *Client) (string, error) {
		id, account, err := c.CreateGate(t.Context(), time.Minute, nil)
		return id + account, err
	}
	mend := func(priority int64, partitions ...string) func(c *Client) (string, error) {
		return func(c *Client) (string, error) {
			return "", c.MendGate(t.Context(), job.GateState{ID: "7", Priority: priority}, partitions)
		}
	}
	poll := func(c *Client) (string, error) { _, err := c.Poll(t.Context()); return "", err }
	change := update(job.Update{Jobs: []string{"1"}, StartNow: true})
	first, place := "scontrol|update|JobId=7|Priority=4294967293", "scontrol|update|JobId=7|Partition=a,b"
	const fails = `case "$2" in *7*) echo "Invalid job id specified for job 7" >&2; exit 1;;
*8*) echo "Job dependency problem for job 8" >&2; exit 1;; esac`
	for name, c := range map[string]struct {
		script string // of the fake commands
		do     func(c *Client) (string, error)
		calls  string // of the commands, a line each; those of CreateGate, which are long, must hold each line
		says   string
		err    error
	}{
		"jobs by one command": {
			do:    update(job.Update{Jobs: []string{"1", "2_3"}, Dependency: ptr(""), StartNow: true}),
			calls: "scontrol|update|JobId=1,2_3|Dependency=|StartTime=now",
		},
		"nodes one by one, in order": {
			do: update(job.Update{Jobs: []string{"7_0", "1", "7_1"}, Gres: ptr("mps:50"), ReqNodes: ptr("n1")}),
			calls: "scontrol|update|JobId=7_0|Gres=mps:50|ReqNodeList=n1\nscontrol|update|JobId=1|Gres=mps:50|ReqNodeList=n1\n" +
				"scontrol|update|JobId=7_1|Gres=mps:50|ReqNodeList=n1",
		},
		"no node": {
			do: update(job.Update{Jobs: []string{"1"}, ReqNodes: ptr("")}), calls: "scontrol|update|JobId=1|ReqNodeList=",
		},
		"a comment": {
			do: update(job.Update{
				Jobs: []string{"1"}, Dependency: ptr("afterany:5:6_2,after:7+3,afterok:7_*"),
				AdminComment: ptr("it's; $(touch x)"),
			}),
			calls: "scontrol|update|JobId=1|Dependency=afterany:5:6_2,after:7+3,afterok:7_*|AdminComment=it's; $(touch x)",
		},
		"a time limit": {
			do:    update(job.Update{Jobs: []string{"1", "2_3"}, TimeLimit: 90 * time.Minute}),
			calls: "scontrol|update|JobId=1,2_3|TimeLimit=90",
		},
		"nothing":       {do: update(job.Update{Jobs: []string{"1"}})},
		"nobody":        {do: update(job.Update{Gres: ptr("mps:50")})},
		"all are there": {script: fails, do: update(job.Update{Jobs: []string{"1", "2"}, ReqNodes: ptr("n1")})},
		"one is gone": {
			script: fails, do: update(job.Update{Jobs: []string{"1", "7"}, ReqNodes: ptr("n1")}), err: job.ErrNoJob,
		},
		"one is gone, one refused": {
			script: fails, do: update(job.Update{Jobs: []string{"1", "7", "8"}, ReqNodes: ptr("n1")}), err: job.ErrRefused,
		},
		"what is said of which job": {
			script: fails, says: "Job dependency problem", err: job.ErrRefused,
			do: func(c *Client) (string, error) {
				err := c.UpdateAll(t.Context(), []job.Update{{Jobs: []string{"8"}, StartNow: true}})[0]
				var said job.JobErrors
				errors.As(err, &said)
				return said["8"].Text, err
			},
		},
		"a gate that is held":     {do: mend(0, "a", "b"), calls: "scontrol|release|7\n" + first + "\n" + place},
		"a gate to be moved":      {do: mend(3, "a", "b"), calls: first + "\n" + place},
		"a gate to come first":    {do: mend(3), calls: first},
		"a gate in no partition":  {do: mend(3, ""), err: job.ErrRefused},
		"a gate in two words":     {do: mend(3, "a Priority=1"), err: job.ErrRefused},
		"a gate in a list of two": {do: mend(3, "a,b"), err: job.ErrRefused},
		"a gate that can't be tightened is not left behind: it would run": {
			script: `case "$0" in *sbatch) echo "77;cluster";;
*scontrol) echo "Requested operation is presently disabled for job 77" >&2; exit 1;; esac`,
			do: create, err: job.ErrRefused,
			calls: "scancel|--name=slurmbridge-gate|77\nscontrol|update|JobId=77|StartTime=now+60|Deadline=now+118",
		},
		"an answer that names no gate": {script: `echo "Submitted"`, do: create, err: job.ErrRefused},
		"a gate under another account that its user has": {
			script: `case "$(basename $0) $*" in "sacctmgr "*) printf 'closed\nlab\nlab\n--x\n';;
"sbatch --account=lab "*) echo 77;;
"sbatch "*) echo "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified" >&2
exit 1;; esac`,
			do: create, says: "77lab", calls: "sbatch|--account=closed|",
		},
		"a gate on this cluster of a federation alone": {
			script: `case "$(basename $0) $*" in
"scontrol show federation") printf 'Federation: both\nSelf:       a:10.0.0.1:6817 ID:1 FedState:ACTIVE Features:\n';;
"sbatch --clusters=a "*) echo "77;a";; "sbatch "*) echo 78;; esac`,
			do: create, says: "77",
		},
		"a command that is killed has refused nothing": {script: "kill -KILL $$", do: change, err: job.ErrDown},
		"a wrapper whose command is killed":            {script: "exit 137", do: change, err: job.ErrDown},
		"a command without its libraries": {
			script: `echo "scontrol: error while loading shared libraries: libslurmfull.so" >&2; exit 127`,
			do:     change, err: job.ErrDown,
		},
		"a gate whose partitions slurmctld sets, and says what its thread met before": {
			script: `case "$*" in *Partition*) echo "Resource temporarily unavailable for job 7" >&2; exit 1;; esac`,
			do:     mend(3, "a", "b"), calls: place,
		},
		"a slurmctld that is down": {
			script: `echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1`,
			do:     poll, err: job.ErrDown,
		},
	} {
		client, calls := recordingFake(t, c.script)
		says, err := c.do(client)
		if says != c.says || !errors.Is(err, c.err) || errors.Is(c.err, job.ErrRefused) && errors.Is(err, job.ErrNoJob) {
			t.Errorf("%s: %q, %v", name, says, err)
		}
		got := strings.Join(calls(), "\n")
		for line := range strings.SplitSeq(c.calls, "\n") {
			if !strings.Contains(got, line) || c.script == "" && got != c.calls || strings.Contains(got, "--account=--x") {
				t.Errorf("%s: the commands are %s", name, got)
			}
		}
	}
	many := make([]string, maxRefs+1)
	for i := range many {
		many[i] = strconv.Itoa(4294900000 + i)
	}
	c, calls := recordingFake(t, "")
	must.OK(t, c.UpdateAll(t.Context(), []job.Update{{Jobs: many, StartNow: true}})...)
	must.Equal(t, len(calls()), 2, "commands for many jobs")
}

// A slurmctld that hangs costs a round of many updates one deadline, not one for each update.
func TestUpdatesEndWithTheFirstThatHangs(t *testing.T) {
	c, calls := recordingFake(t, "exec sleep 600")
	c.Timeout = time.Second
	all := []job.Update{{Jobs: []string{"7_0"}, StartNow: true}}
	for i := range 20 {
		all = append(all, job.Update{Jobs: []string{"7_" + strconv.Itoa(i), strconv.Itoa(100 + i)}, ReqNodes: ptr("n1")})
	}
	for i, err := range c.UpdateAll(t.Context(), all) {
		must.Is(t, err, job.ErrDown, all[i].Jobs)
	}
	if n := len(calls()); n > mostScontrols {
		t.Errorf("%d scontrols", n)
	}
}

// Nothing that isn't a value of its kind reaches a command line.
func TestUpdateRefuses(t *testing.T) {
	c, calls := recordingFake(t, "")
	for _, u := range []job.Update{
		{Jobs: []string{"1", "2 Priority=9"}, StartNow: true},
		{Jobs: []string{"1,2"}, StartNow: true},
		{Jobs: []string{"--help"}, StartNow: true},
		{Jobs: []string{"1_[2-3]"}, StartNow: true},
		{Jobs: []string{"1"}, Gres: ptr("mps:50 Priority=9")},
		{Jobs: []string{"1"}, Gres: ptr("")},
		{Jobs: []string{"1"}, Gres: ptr("mps:50\n")},
		{Jobs: []string{"1"}, ReqNodes: ptr("n1;reboot")},
		{Jobs: []string{"1"}, ReqNodes: ptr("n1\nn2")},
		{Jobs: []string{"1"}, Dependency: ptr("after:1 Priority=9")},
		{Jobs: []string{"1"}, AdminComment: ptr("a\nb")},
		{Jobs: []string{"1"}, TimeLimit: 90 * time.Second},
		{Jobs: []string{"1"}, TimeLimit: -time.Minute},
	} {
		must.Fail(t, c.UpdateAll(t.Context(), []job.Update{u})[0], "", u)
	}
	for _, bad := range []string{"", "-1", "1,2", "--state=PD"} {
		must.Fail(t, c.OpenGate(context.Background(), bad), "", bad)
		must.Fail(t, c.RenewGate(context.Background(), bad, time.Minute), "", bad)
		must.Fail(t, must.Err(c.Script(context.Background(), bad)), "", bad)
	}
	must.Equal(t, calls(), []string{""}, "commands were run")
}

// Limits on GPUs are read where jobs are adopted and limits enforced, once a minute. Before they are known all
// jobs are under one; later they stay as they were while the database is away.
func TestGPULimits(t *testing.T) {
	away := filepath.Join(t.TempDir(), "away")
	must.OK(t, os.WriteFile(away, nil, 0o600))
	c, calls := recordingFake(t, `[ -e `+away+` ] && exit 1
case "$*" in
*"show assoc cluster=c "*) printf 'lab||root|gres/gpu=4||\n';;
*"show qos "*) printf 'normal|||gres/gpu=2||\n';;
esac`)
	now := time.Unix(1e9, 0)
	c.Now = func() time.Time { return now }
	config := map[string]string{"AccountingStorageEnforce": "associations,limits,qos", "ClusterName": "c"}
	if got := c.gpuLimits(t.Context(), config, nil); got != nil || strings.Join(calls(), "") != "" {
		t.Errorf("sacctmgr is asked, or %v", got)
	}
	c.GPULimits = true
	must.Equal(t, c.gpuLimits(t.Context(), map[string]string{"AccountingStorageEnforce": "associations"}, nil), nil)
	if got := c.gpuLimits(t.Context(), config, nil); len(got) != 1 || !got[0].Uncounted || !got[0].Counts(&job.Job{}) {
		t.Errorf("not known yet: %+v", got)
	}
	must.OK(t, os.Remove(away))
	for range 2 {
		now = now.Add(time.Minute)
		if got := c.gpuLimits(t.Context(), config, nil); len(got) != 2 || got[0].Most != 4 || got[1].Most != 2 {
			t.Errorf("%+v", got)
		}
		must.OK(t, os.WriteFile(away, nil, 0o600))
	}
}

// Which QOS preempts which is read once a minute, and stays as it was while the database is away.
func TestPreemptionsOfQOS(t *testing.T) {
	away := filepath.Join(t.TempDir(), "away")
	must.OK(t, os.WriteFile(away, nil, 0o600))
	c := fake(t, `[ -e `+away+` ] && exit 1
printf 'normal|\nhigh|normal\n'`)
	now := time.Unix(1e9, 0)
	c.Now = func() time.Time { return now }
	must.Equal(t, c.preemptions(t.Context()), nil, "not known yet")
	must.OK(t, os.Remove(away))
	for range 2 {
		now = now.Add(time.Minute)
		must.Equal(t, c.preemptions(t.Context()), map[string][]string{"normal": nil, "high": {"normal"}})
		must.OK(t, os.WriteFile(away, nil, 0o600))
	}
}

// Two long scripts that differ in their last letter are two scripts, though neither is kept whole.
func TestLongScripts(t *testing.T) {
	read := func(last string) string {
		c := fake(t, "head -c 1000000 /dev/zero; printf "+last)
		b, err := c.Script(t.Context(), "5")
		if err != nil || len(b) > 300_000 {
			t.Error(len(b), err)
		}
		return string(b)
	}
	if a := read("a"); a == read("b") || a != read("a") {
		t.Error("the end of a long script doesn't count")
	}
	c := fake(t, "head -c 20000000 /dev/zero")
	must.Fail(t, must.Err(c.Script(t.Context(), "5")), "", "an endless script")
}

// One look is one squeue and one scontrol for the nodes; configuration, GPUs of
// running jobs are asked for when they are new, excluded nodes each time where the rows don't have them (22.05).
func TestLookCommands(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			dir := must.Get(filepath.Abs(filepath.Join("testdata", release)))(t)
			c, calls := recordingFake(t, `
nonce=${SQUEUE_FORMAT2#jobid:}; nonce=${nonce%%,*}
case "$(basename $0) $*" in
"squeue "*%A*) cat `+dir+`/excluded;;
"squeue "*) case "`+release+` $SQUEUE_FORMAT2" in 22.05*excnodes*) echo "squeue: error: Invalid job format specification: excnodes" >&2;; *) sed "s/~RECORDEDNONC/$nonce/g" `+dir+`/queue;; esac;;
*"show config") cat `+dir+`/config;;
*"show nodes") cat `+dir+`/nodes;;
*"show partitions") sed '/=gpu /s/PriorityTier=1/PriorityTier=3/' `+dir+`/partitions;;
"scontrol --all -d") while read -r show what id; do case "$show $what" in
  "show job") echo "scontrol: show job $id"; case $id in 2) cat `+dir+`/detail-rgpus;; 3) cat `+dir+`/detail-rmps;; 4) cat `+dir+`/detail-rmps2;; 5) cat `+dir+`/detail-rshard;; 6) cat `+dir+`/detail-rshard2;; 8_*) cat `+dir+`/detail-rshard;; esac;;
  *) echo "scontrol: show hostnames $id"; echo $id;; esac; done;;
"scontrol --all") while read -r show what id; do case "$show $what $id" in
  "show job 3") echo "scontrol: show job $id"; sed '/GRES=mps:60/d' `+dir+`/detail-rmps;;
  *) echo "scontrol: $show $what $id"; echo $id;; esac; done;;
*) echo "unexpected: $*" >&2; exit 1;;
esac`)
			snap := must.Get(c.Poll(context.Background()))(t)
			by := map[string]*job.Job{}
			for i := range snap.Jobs {
				by[snap.Jobs[i].Ref] = &snap.Jobs[i]
			}
			for ref, want := range map[string][]int{
				"1": {0}, "2": {0}, "3": {1}, "4": {1}, "5": {0}, "6": {1}, "8_1": {0},
				"22_2": nil,
			} {
				must.Equal(t, by[ref].GPUs, want, "job %s", ref)
			}
			must.Equal(t, by["24"].Tier, 3, "the tier of a partition's job")
			got := [3]string{by["24"].ExcNodes, by["22_1"].ExcNodes, by["22_0"].ExcNodes}
			must.Equal(t, got, [3]string{"n[1,3]", "n3", ""}, "excluded")
			if len(snap.Nodes) != 4 || len(snap.Gates) != 1 || snap.Gates[0].ID != "32" || snap.Gates[0].Open ||
				!strings.HasPrefix(snap.Release, release) {
				t.Errorf("%+v %+v %s", snap.Nodes, snap.Gates, snap.Release)
			}
			first := len(calls())
			must.Equal(t, first, map[string]int{"22.05": 8, "24.11": 6, "26.05": 6}[release], "commands at first")
			again := must.Get(c.Poll(context.Background()))(t)
			must.Equal(t, len(calls()), map[string]int{"22.05": 3, "24.11": 2, "26.05": 2}[release], "commands then")
			must.Equal(t, again.Jobs[0].Ref, snap.Jobs[0].Ref, "the first job of the same queue")
			must.Equal(t, len(again.Jobs), len(snap.Jobs), "jobs of the same queue")
			for i := range again.Jobs {
				if !slices.Equal(again.Jobs[i].GPUs, snap.Jobs[i].GPUs) || again.Jobs[i].ExcNodes != snap.Jobs[i].ExcNodes {
					t.Errorf("job %s: %+v", again.Jobs[i].Ref, again.Jobs[i])
				}
			}
		})
	}
}

// A cluster whose partitions aren't known isn't polled: such a poll would know no rank and no default. Later partitions
// stay as they were until they can be read again.
func TestPartitionsThatCantBeRead(t *testing.T) {
	away := filepath.Join(t.TempDir(), "away")
	must.OK(t, os.WriteFile(away, nil, 0o600))
	c := fake(t, `case "$*" in
*"show config") echo "SLURM_VERSION = 24.11.5";;
*"show partitions") [ -e `+away+` ] && exit 1; echo "PartitionName=a JobDefaults=DefCpuPerGPU=4";;
esac`)
	now := time.Unix(1e9, 0)
	c.Now = func() time.Time { return now }
	must.Fail(t, must.Err(c.Poll(t.Context())), "")
	must.OK(t, os.Remove(away))
	for range 2 {
		must.Equal(t, must.Get(c.Poll(t.Context()))(t).PerGPU, map[string]job.PerGPU{"a": {CPUs: 4}})
		must.OK(t, os.WriteFile(away, nil, 0o600))
		now = now.Add(2 * partitionsEvery)
	}
}

func TestGPUNodes(t *testing.T) {
	for gres, want := range map[string]job.Node{
		"gpu:2(S:0-1)":           {GPUs: 2},
		"gpu:a:1(S:0,2),gpu:b:1": {GPUs: 2, ByIndex: []job.GPU{{Type: "a"}, {Type: "b"}}},
		"gpu:a:2,mps:a:100": {
			GPUs: 2, GPUType: "a", Sharing: job.MPS, Units: 100,
			ByIndex: []job.GPU{{Type: "a", Units: 100}, {Type: "a"}},
		},
		"gpu:a:1(S:0,2),nic:2,shard:a:100":     {GPUs: 1, GPUType: "a", Sharing: job.Shard, Units: 100},
		"gpu:a:2,mps:a:100(S:1),mps:a:100":     {GPUs: 2, GPUType: "a", Sharing: job.MPS, Units: 200},
		"gres/gpu:a:2,gres/mps:200,shard:200":  {GPUs: 2, GPUType: "a", Sharing: job.MPS, Units: 200},
		"gpu:a:1,gpu:a:1(S:1),gpu:b:0,mps:0":   {GPUs: 2, GPUType: "a"},
		"craynetwork:4,gpu:tesla:1,gpu:kepler": {GPUs: 2, ByIndex: []job.GPU{{Type: "tesla"}, {Type: "kepler"}}},
	} {
		want.Name, want.Up, want.CPUsPerAlloc = "x", true, 1
		nodes := gpuNodes(text.ParseNodes([]byte("NodeName=x State=IDLE Gres="+gres+"\nNodeName=y State=IDLE Gres=mps:100\n")), "", "24.11.5")
		if len(nodes) != 1 || !reflect.DeepEqual(nodes[0], want) {
			t.Errorf("%s: %+v", gres, nodes)
		}
	}
}

// MIG instances are GPUs with shares of their own where Slurm can share them, and have none in older releases.
func TestInstancesHaveShares(t *testing.T) {
	const line = "NodeName=x State=IDLE Gres=gpu:h100:1,gpu:2g.20gb:2,shard:h100:100,shard:2g.20gb:200 " +
		"GresUsed=gpu:h100:0(IDX:N/A),gpu:2g.20gb:1(IDX:2),shard:h100:60(60/100),shard:2g.20gb:60(60/100,0/100)\n"
	for release, units := range map[string][]int{
		"22.05.8": {100, 0, 0}, "23.02.6": {100, 0, 0},
		"23.02.7": {100, 100, 100}, "26.05.5": {100, 100, 100},
	} {
		n := gpuNodes(text.ParseNodes([]byte(line)), "", release)[0]
		var got []int
		for g := range n.GPUs {
			got = append(got, n.GPU(g).Units)
		}
		must.Equal(t, got, units, release)
		must.Equal(t, n.Types(), []string{"h100", "2g.20gb", "2g.20gb"})
		if !n.Typed() {
			t.Error("shares of a node of several types aren't asked for by type")
		}
		alike := gpuNodes(text.ParseNodes([]byte("NodeName=x State=IDLE Gres=gpu:1g.10gb:7,shard:1g.10gb:700\n")), "",
			release)[0]
		if got := alike.GPU(6); alike.Typed() || got.Type != "1g.10gb" || got.Units != units[1] {
			t.Errorf("%s: %+v", release, alike)
		}
	}
}

// Slurm 22.05 shows an array without its limit for a moment: it counts for three more polls.
func TestTheLimitOfAnArrayIsRemembered(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows")
	c := fake(t, "cat "+file)
	var got []int
	for _, row := range []string{"7|0-4%1", "7|0-4", "7|0-4", "7|0-4", "7|0-4"} {
		must.OK(t, os.WriteFile(file, []byte(row+"\n"), 0o644))
		waits := job.Dependencies{List: []job.Dependency{{Type: "after", Job: "9"}}}
		snap := &job.Snapshot{Jobs: []job.Job{{ArrayID: 7, State: job.Pending, Dependency: waits}, {ID: 8}}}
		must.OK(t, c.throttle(t.Context(), snap))
		got = append(got, snap.Jobs[0].ArrayLimit)
		must.Equal(t, snap.Jobs[1].ArrayLimit, 0)
	}
	must.Equal(t, got, []int{1, 1, 1, 1, 0})
}
