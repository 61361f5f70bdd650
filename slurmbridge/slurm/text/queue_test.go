package text

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"pgregory.net/rapid"
)

// releases are those whose output was recorded, by testdata/record.sh.
var releases = []string{"22.05", "24.11", "26.05"}

// hasExc tells whether a release's squeue knows excluded nodes as a field.
func hasExc(release string) bool { return release != "22.05" }

// recordedNonce is the one that the recordings were made with.
const recordedNonce = "~RECORDEDNONC"

// recordedSlurm is the uid of the recorded clusters' SlurmUser.
const recordedSlurm = 64030

func recorded(t testing.TB, release, name string) []byte {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join("../testdata", release, name)))(t)
	return b
}

func parseRecorded(t testing.TB, release, name string) (map[string]*job.Job, []job.GateState) {
	t.Helper()
	p := QueueParser{
		Ours: func(uid uint32) bool { return uid == recordedSlurm }, NoExcNodes: !hasExc(release),
		Release: release,
	}
	jobs, gates, err := p.Parse(nil, recorded(t, release, name), recordedNonce)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]*job.Job{}
	for i := range jobs {
		if by[jobs[i].Ref] != nil {
			t.Errorf("job %s stands there twice", jobs[i].Ref)
		}
		by[jobs[i].Ref] = &jobs[i]
	}
	return by, gates
}

// The recordings were asked for with the very format the client uses.
func TestRecordedFormat(t *testing.T) {
	b := must.Get(os.ReadFile("../testdata/format"))(t)
	for _, release := range releases {
		p := QueueParser{Release: release}
		exclusive := exclusiveField(release)
		format := strings.NewReplacer("NONCE", recordedNonce, "oversubscribe", exclusive).Replace(string(b))
		must.Equal(t, format, p.Format(recordedNonce), "testdata/format, of what %s is asked for", release)
		p.NoExcNodes = true
		if strings.Contains(p.Format(recordedNonce), "excnodes") {
			t.Errorf("%s is asked for a field that it lacks", release)
		}
	}
}

func TestParseQueueRecorded(t *testing.T) {
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			jobs, gates := parseRecorded(t, release, "queue")
			if len(gates) != 1 || gates[0].ID != "32" || gates[0].Open || gates[0].Begin.IsZero() {
				t.Errorf("gates %+v", gates)
			}
			if jobs["7"] != nil || jobs["29"] != nil || jobs["19"] != nil || jobs["32"] != nil {
				t.Error("a job without a GPU was kept")
			}
			must.Equal(t, len(jobs), 35, "jobs")
			find := func(ref string) *job.Job {
				if jobs[ref] == nil {
					t.Fatalf("job %s is missing", ref)
				}
				return jobs[ref]
			}
			for ref, want := range map[string]struct {
				kind  job.RequestKind
				count int
			}{
				"1": {job.WholeGPU, 1}, "2": {job.WholeGPU, 1}, "3": {job.Shares, 60},
				"5": {job.Shares, 50}, "8_2": {job.Shares, 20},
				"10": {job.WholeGPU, 1}, "11": {job.WholeGPU, 1}, "12": {job.WholeGPU, 1}, "13": {job.WholeGPU, 1},
				"14": {job.SharedGPU, 1}, "15": {job.SharedGPU, 1}, "16": {job.WholeGPU, 1},
				"17": {job.Shares, 30}, "18": {job.Shares, 30}, "22_1": {job.Shares, 33}, "22_2": {job.Shares, 50},
			} {
				if a := find(ref).Request; a.Kind != want.kind || a.Count != want.count {
					t.Errorf("job %s asks %+v", ref, a)
				}
			}
			type is map[string]func(j *job.Job) bool
			for ref, so := range (is{
				"1": func(j *job.Job) bool {
					return j.State == job.Running && j.Nodes == "n1" && j.ReqNodes == "n1" && j.TimeLimit == 5*time.Minute &&
						!j.Start.Before(j.Submit) && j.User == "nobody" && j.UID == 65534 && j.CPUs == 1 && j.HostMemMiB == 100
				},
				"2":    func(j *job.Job) bool { return j.TimeLimit == 26*time.Hour+4*time.Minute },
				"5":    func(j *job.Job) bool { return j.Request.Sharing == job.Shard },
				"8_1":  func(j *job.Job) bool { return j.ID == 9 && j.ArrayID == 8 }, // runs
				"22_1": func(j *job.Job) bool { return j.ID > 32 && j.ArrayID == 22 },
				"22_2": func(j *job.Job) bool { // waits
					return j.ID == 22 && j.ArrayID == 22 && j.Reason == "BeginTime" && j.Eligible.Sub(j.Submit) == 9000*time.Second
				},
				"12": func(j *job.Job) bool { return j.Reservation == "" },
				"13": func(j *job.Job) bool { return j.Reservation == "r1" },
				"15": func(j *job.Job) bool { return j.Partition == "gpu,hidden" },
				"20": func(j *job.Job) bool { return j.CPUs == 2 && j.HostMemMiB == 2048 && j.Start.IsZero() },
				"23": func(j *job.Job) bool {
					return j.Dependency.Or && len(j.Dependency.List) == 2 && j.Eligible.IsZero() && j.ExcNodes == ""
				},
				"24": func(j *job.Job) bool {
					return !j.Dependency.Or && j.Dependency.Has("afterany", "2") && j.Features == "pascal&big" &&
						j.Dependency.List[0] == job.Dependency{Type: "after", Job: "22", Rest: "+5"}
				},
				"25": func(j *job.Job) bool {
					return j.Priority == 0 && j.Reason == "JobHeldUser" && j.Dependency.List[0].Type == "singleton" && j.Requeue
				},
				"26": func(j *job.Job) bool { // a begin time of the owner's shows although a dependency is unmet
					return j.Eligible.Sub(j.Submit) == 9000*time.Second && !j.Requeue && j.Dependency.Has("after", "22")
				},
				"28": func(j *job.Job) bool {
					return j.NumNodes == 1 && j.CPUs == 8 && j.HostMemMiB == 1200 && j.TimeLimit == 0 && j.HetID == 0
				},
				"30": func(j *job.Job) bool { return j.HetID == 30 },
				"31": func(j *job.Job) bool { return j.HetID == 30 },
				// What users wrote stays where they wrote it.
				"17": func(j *job.Job) bool {
					return j.Comment == "hi|there\n7~ANOTHERNONCE7|N/A|x~" && j.User == "nobody"
				},
				"27": func(j *job.Job) bool {
					return strings.EqualFold(j.Account, "acc|t\n9~ANOTHERNONCE9|") && j.Features == "pascal|big" && j.Comment == ""
				},
				// Neither the name nor the comment makes a user's job the gate.
				"18": func(j *job.Job) bool { return j.Comment == job.GateName },
			}) {
				if j := find(ref); !so(j) {
					t.Errorf("job %s: %+v", ref, j)
				}
			}
			noted, names := 0, map[string]bool{}
			for ref, j := range jobs {
				must.Equal(t, j.Exclusive == job.WholeNodes, ref == "13", "job %s: exclusive", ref) // the one with --exclusive
				must.Equal(t, j.WorkDir, "/", "job %s starts in", ref)
				names[j.Name] = true
				if j.Note.Defaults != (job.Defaults{}) { // as the job_submit script notes them, and nobody else
					noted++
					if want := (job.Defaults{CPUs: 2, MemMiB: 2048}); j.Note.Defaults != want || !want.Has(j) {
						t.Errorf("job %s: %+v", ref, j)
					}
				}
			}
			if noted != 1 || !names["evil|name"] || !names["whole"] || !names["wrap"] {
				t.Errorf("%d jobs with defaults; names are %v", noted, names)
			}
			if hasExc(release) && (find("24").ExcNodes != "n[1,3]" || find("22_1").ExcNodes != "n3") {
				t.Errorf("excluded: %q, %q", find("24").ExcNodes, find("22_1").ExcNodes)
			}
		})
	}
}

// Times in a format that can't be read, with the fields' own delimiter in it even,
// are an error or unknown, but never another time.
func TestParseQueueOddTimes(t *testing.T) {
	for _, release := range releases {
		p := QueueParser{NoExcNodes: !hasExc(release), Release: release}
		if _, _, err := p.Parse(nil, recorded(t, release, "queue-odd-times"), recordedNonce); err == nil {
			t.Errorf("%s: rows with a delimiter in their times were accepted", release)
		}
	}
	must.Equal(t, parseTime([]byte("21.11. 04h41")), time.Time{})
}

// row renders one row as squeue does.
func row(nonce string, id string, plain [numPlain]string, free [numFree]string) string {
	return id + nonce + strings.Join(plain[:], "|") + nonce + strings.Join(free[:], nonce) + nonce + "\n"
}

func plainRow(id string) [numPlain]string {
	return [numPlain]string{
		id, "N/A", "N/A", "1000", "user", "gpu", "PENDING", "7", "1700000000", "N/A", "N/A", "10:00", "1700009000",
		"1", "2", "cpu=2,mem=200M,node=1,billing=2", "1", "",
	}
}

// Whatever users write into the fields they can write to, every row keeps its place and its owner.
func TestParseQueueHostile(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[|~\n0-9A-Z]{0,40}`),
		rapid.SampledFrom([]string{"", "(null)", "\n", "|", "~", "1~", job.GateName}))
	rapid.Check(t, func(t *rapid.T) {
		nonce := NewNonce()
		var b strings.Builder
		var want []job.Job
		for i := range rapid.IntRange(0, 6).Draw(t, "rows") {
			id := fmt.Sprint(i + 1)
			f := [numFree]string{
				fPerNode: "gres:mps:100", fPerJob: "N/A", fPerSocket: "N/A", fPerTask: "N/A",
				fDependency: "after:5(unfulfilled)", fReason: "Dependency",
				fReqNodes: text.Draw(t, "reqnodes"), fExcNodes: text.Draw(t, "excnodes"), fFeature: text.Draw(t, "feature"),
				fPrefer:  text.Draw(t, "prefer"),
				fAccount: text.Draw(t, "account"), fComment: text.Draw(t, "comment"),
				fName: text.Draw(t, "name"), fWorkDir: text.Draw(t, "folder"),
			}
			b.WriteString(row(nonce, id, plainRow(id), f))
			none := func(s string) string {
				if IsNone(s) {
					return ""
				}
				return s
			}
			c := f[fComment]
			want = append(want, job.Job{
				Ref: id, ID: int64(i + 1), UID: 1000, User: "user", Partition: "gpu", State: job.Pending, Reason: "Dependency",
				Priority: 7, Submit: time.Unix(1700000000, 0), TimeLimit: 10 * time.Minute, Deadline: time.Unix(1700009000, 0),
				Request:    job.GPURequest{Kind: job.Shares, Sharing: job.MPS, Count: 100, Raw: "gres:mps:100"},
				Dependency: ParseDependencies("after:5(unfulfilled)"),
				ReqNodes:   none(f[fReqNodes]), ExcNodes: none(f[fExcNodes]), Features: none(f[fFeature]),
				Prefers: none(f[fPrefer]),
				Account: none(f[fAccount]), Comment: none(c[:min(len(c), maxComment)]),
				Name: none(f[fName]), WorkDir: none(f[fWorkDir]),
				NumNodes: 1, CPUs: 2, HostMemMiB: 200, Requeue: true,
			})
		}
		p := QueueParser{Ours: func(uid uint32) bool { return uid == 0 }}
		jobs, gates, err := p.Parse(nil, []byte(b.String()), nonce)
		if err != nil || len(gates) != 0 {
			t.Fatal(gates, err)
		}
		if len(jobs) != len(want) {
			t.Fatalf("%d jobs of %d", len(jobs), len(want))
		}
		for i := range want {
			must.Equal(t, jobs[i], want[i])
		}
	})
}

// An answer that was cut anywhere is an error, not a shorter queue (but at the end of a row, where nothing tells).
func TestParseQueueCut(t *testing.T) {
	whole := []byte(row("~N", "1", plainRow("1"), [numFree]string{fPerNode: "gres:mps:1"}))
	var p QueueParser
	for n := 1; n < len(whole)-1; n++ {
		if _, _, err := p.Parse(nil, whole[:n], "~N"); err == nil {
			t.Errorf("cut after %d of %d bytes: no error", n, len(whole))
		}
	}
	for _, n := range []int{0, len(whole) - 1, len(whole)} {
		if _, _, err := p.Parse(nil, whole[:n], "~N"); err != nil {
			t.Errorf("whole: %v", err)
		}
	}
}

// The jobs whose end a job without a GPU waits for are reported; a job whose start it waits for is not.
func TestParseQueueAwaited(t *testing.T) {
	var out string
	for _, dep := range []string{
		"afterok:5(unfulfilled),afterany:6_2(unfulfilled),afterany:7_*(unfulfilled)",
		"after:8(unfulfilled)", "singleton(unfulfilled)", "(null)", "afternotok:5(unfulfilled)?aftercorr:9_*",
	} {
		out += row("~N", "1", plainRow("1"), [numFree]string{fDependency: dep})
	}
	out += row("~N", "2", plainRow("2"), [numFree]string{fPerNode: "gres:mps:1", fDependency: "afterok:10"})
	var p QueueParser
	for range 2 {
		jobs, _, err := p.Parse(nil, []byte(out), "~N")
		want := map[string]bool{"5": true, "6_2": true, "7": true, "9": true}
		if err != nil || len(jobs) != 1 || !maps.Equal(p.Awaited, want) {
			t.Errorf("%d jobs, %v, awaited %v", len(jobs), err, p.Awaited)
		}
	}
}

func FuzzParseQueue(f *testing.F) {
	for _, release := range releases {
		f.Add(recorded(f, release, "queue"))
		f.Add(recorded(f, release, "queue-odd-times"))
	}
	f.Add([]byte("1~RECORDEDNONC"))
	f.Fuzz(func(t *testing.T, out []byte) {
		var p QueueParser
		jobs, _, err := p.Parse(nil, out, recordedNonce)
		for i := range jobs {
			j := &jobs[i]
			if err != nil {
				t.Errorf("job %+v with error %v", j, err)
			}
			if j.Request.Kind == job.NoGPU {
				t.Errorf("job without a GPU: %+v", j)
			}
			if len(j.Comment) > maxComment || j.HostMemMiB < 0 || j.NumNodes < 0 || j.CPUs < 0 || j.TimeLimit < 0 {
				t.Errorf("job %+v", j)
			}
		}
	})
}

func TestValidRef(t *testing.T) {
	for _, ok := range []string{"1", "123", "120_4", "120_0", "4294967295"} {
		if !ValidRef(ok) {
			t.Errorf("%q was refused", ok)
		}
	}
	for _, bad := range []string{
		"", "0", "-1", "1_", "_1", "1,2", "1 2", "1_2_3", "1+0", "--help", "1_[2-3]", "1_02",
		"99999999999", "1_99999999999", "1\n2", "１",
	} {
		if ValidRef(bad) {
			t.Errorf("%q was taken for a job", bad)
		}
	}
}

func TestParseTimes(t *testing.T) {
	at := time.Date(2026, 11, 21, 4, 21, 38, 0, time.UTC)
	for in, want := range map[string]time.Time{
		"1795234898": at, "2026-11-21T04:21:38": at, "N/A": {}, "Unknown": {}, "NONE": {}, "": {}, "0": {},
		"4294967294": {}, "2026-13-41T04:21:38": {}, "04:21": {}, "99999999999999999999": {},
	} {
		must.Equal(t, parseTime([]byte(in)).Equal(want), true, in)
	}
	for in, want := range map[string]time.Duration{
		"5:00": 5 * time.Minute, "1-02:04:00": 26*time.Hour + 4*time.Minute, "2:03:04": 2*time.Hour + 3*time.Minute +
			4*time.Second,
		"UNLIMITED": 0, "NOT_SET": 0, "INVALID": 0, "": 0, "1-": 0, "365-00:00:00": 365 * 24 * time.Hour, "-5:00": 0,
		"1:2:3:4": 0,
	} {
		must.Equal(t, parseLimit([]byte(in)), want, in)
	}
	for in, want := range map[string]float64{
		"100M": 100, "2G": 2048, "1.50G": 1536, "512K": 0.5, "4096": 4096, "": 0,
		"x": 0, "1.2.3G": 0, "1T": 1 << 20,
	} {
		must.Equal(t, ParseMiB(in), want, in)
	}
}

// oneRow is the job that a row becomes, nil = it isn't one of the bridge's.
func oneRow(t *testing.T, release string, change func(*[numPlain]string, *[numFree]string)) *job.Job {
	t.Helper()
	plain, free := plainRow("1"), [numFree]string{fPerNode: "gres:mps:100"}
	change(&plain, &free)
	p := QueueParser{Release: release}
	jobs, _, err := p.Parse(nil, []byte(row("~N", "1", plain, free)), "~N")
	must.OK(t, err)
	if len(jobs) == 0 {
		return nil
	}
	return &jobs[0]
}

// A job that is started again before all others is pending as soon as it is off its node.
func TestParseQueueStates(t *testing.T) {
	for in, want := range map[string]job.Job{
		"PENDING": {State: job.Pending}, "CONFIGURING": {State: job.Running}, "COMPLETING": {State: job.Completing},
		"SUSPENDED": {State: job.Suspended}, "REQUEUE_HOLD": {State: job.Pending}, "SPECIAL_EXIT": {State: job.Pending},
		"EXPEDITING": {State: job.Pending, Expedited: true}, "EXPEDITING n1": {State: job.Completing},
		"COMPLETED": {}, "DEADLINE": {}, "TIMEOUT": {}, "NEWSTATE": {},
	} {
		got := job.Job{}
		if j := oneRow(t, "", func(p *[numPlain]string, _ *[numFree]string) {
			p[pState], p[pNodeList], _ = strings.Cut(in, " ")
		}); j != nil {
			got.State, got.Expedited = j.State, j.Expedited
		}
		must.Equal(t, got, want, in)
	}
}

// What each release prints of a job that keeps other jobs off its nodes.
func TestExclusive(t *testing.T) {
	for release, says := range map[string]map[string]job.Exclusive{
		"22.05.8": {"NO": job.WholeNodes, "OK": "", "YES": "", "USER": job.OneUser, "MCS": "MCS"},
		"23.11.4": {"NO": job.WholeNodes, "OK": "", "USER": job.OneUser},
		"24.11.5": {"NO": job.WholeNodes, "OK": "", "USER": job.OneUser, "MCS": "MCS", "TOPO": "TOPO"},
		"25.11.4": {"NO": job.WholeNodes, "OK": "", "TOPO": "TOPO"},
		"26.05.5": {"NO": "", "NODE": job.WholeNodes, "USER": job.OneUser, "MCS": "MCS", "TOPO": "TOPO"},
		"26.11.0": {"NO": "", "NODE": job.WholeNodes},
	} {
		for word, want := range says {
			j := oneRow(t, release, func(p *[numPlain]string, _ *[numFree]string) { p[pExclusive] = word })
			must.Equal(t, j.Exclusive, want, "%s: %s", release, word)
		}
	}
}

// Fields that a user made endless cost that user's job alone: its own row says that it is too long to read, or is left
// out where nothing can be known of it, and the next row is as it was.
func TestEndlessFields(t *testing.T) {
	long := strings.Repeat("n1,", MostOfField)
	for name, c := range map[string]struct {
		change  func(*[numPlain]string, *[numFree]string)
		jobs    int
		tooLong bool
	}{
		"excluded nodes":       {func(_ *[numPlain]string, f *[numFree]string) { f[fExcNodes] = long }, 2, true},
		"its name":             {func(_ *[numPlain]string, f *[numFree]string) { f[fName] = long }, 2, false},
		"its AdminComment":     {func(_ *[numPlain]string, f *[numFree]string) { f[fAdminComment] = long }, 2, false},
		"a list of partitions": {func(p *[numPlain]string, _ *[numFree]string) { p[pPartition] = long }, 1, false},
		"its dependencies":     {func(_ *[numPlain]string, f *[numFree]string) { f[fDependency] = long }, 1, false},
	} {
		plain, free := plainRow("1"), [numFree]string{fPerNode: "gres:mps:100"}
		honest := row("~N", "2", plainRow("2"), free)
		c.change(&plain, &free)
		var kept bytes.Buffer
		b := NewBounded(&kept, "~N")
		must.Get(b.Write([]byte(row("~N", "1", plain, free) + honest)))(t)
		must.OK(t, b.Close())
		if kept.Len() > MostOfField+2000 {
			t.Errorf("%s: %d bytes are kept", name, kept.Len())
		}
		var p QueueParser
		jobs, _, err := p.Parse(nil, kept.Bytes(), "~N")
		if err != nil || len(jobs) != c.jobs || jobs[c.jobs-1].Ref != "2" || jobs[c.jobs-1].TooLong ||
			jobs[0].TooLong != c.tooLong || jobs[0].ExcNodes != "" ||
			(jobs[0].AdminComment == "") == (name == "its AdminComment") { // somebody else's stays
			t.Errorf("%s: %+v, %v", name, jobs, err)
		}
	}
}

// What releases print of arrays: with a limit and without, of the last task, cut short, and of no array.
func TestArrayLimits(t *testing.T) {
	got := ParseArrayLimits([]byte("7|0-3%1\n8|[1-2]\n9|5%12\n10|0-3,9,...%2\n11|N/A\n|0%1\n12|0%\n13|3%0\nx|1%1\n"))
	must.Equal(t, got, map[int64]int{7: 1, 9: 12, 10: 2})
}
