package trace

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// readers are all readers, by what they read, with the results left out.
var readers = map[string]func(r io.Reader) error{
	"jobs":     func(r io.Reader) error { _, err := ReadJobs(r, "f"); return err },
	"profiles": func(r io.Reader) error { _, err := ReadProfiles(r, "f"); return err },
	"pairs":    func(r io.Reader) error { _, err := ReadPairs(r, "f", "a", "b"); return err },
	"sacct":    func(r io.Reader) error { _, _, err := ReadSacct(r, "f"); return err },
}

const sacctHead = "JobID|JobName|User|Submit|ElapsedRaw|State|AllocTRES\n"

func TestWrongTracesAreRefused(t *testing.T) {
	const pairs, jobs, profiles = "victim,aggressor,slowdown\n", "job,submit_s,app\n1,", "app,gpu_util\n"
	const stamped = "1|a|u|2024-01-01T00:00:00|"
	for _, c := range []struct{ reader, text, want string }{
		{"pairs", pairs + "a,b,1.5\n\na,b,abc\n", `f:4: slowdown: "abc" is not a number`},
		{"pairs", pairs + "a,b,NaN\n", `f:2: slowdown: out of range: "NaN" is not a finite number`},
		{"pairs", pairs + "a,b,1e999\n", `f:2: slowdown: out of range: "1e999" is not a finite number`},
		{"pairs", pairs + "a,b,0\n", "f:2: slowdown: out of range: 0 is not from 0.5 to 1000"},
		{"pairs", pairs + "a,b,\n", "f:2: slowdown: the value is missing"},
		{"pairs", pairs + "a,b\n", "f:2: the row doesn't have the header's 3 columns"},
		{"pairs", "# where from\na,b\n", "f:2: victim: the header lacks this column; it has a,b"},
		{"pairs", "victim,aggressor,slowdown,Victim\n", `f:1: column "Victim" stands there twice`},
		{"pairs", pairs, "f: there is no row in it"},
		{"pairs", "", "f: the file is empty"},
		{"pairs", "\ufeff", "f: the file is empty"},
		{"pairs", pairs + "a,c,1.5\n", `f:2: aggressor: unknown application "c"; there are a, b`},
		{"pairs", pairs + "\"a,b,1\n", `f:2: at byte 8: extraneous or missing " in quoted-field`},
		{"pairs", pairs + "\n\na,b,1\n" + long, "f:5: the line is too long: more than 1048576 bytes"},

		{"jobs", jobs + "0,\n", "f:2: app: the value is missing"},
		{"jobs", jobs + "-1,a\n", "f:2: submit_s: out of range: -1 is not from 0 to 1e+11"},
		{"jobs", job("duration_s", "0"), "f:2: duration_s: out of range: 0 is not from 0.01 to 1e+09"},
		{"jobs", job("GPUs", "1.5"), "f:2: GPUs: out of range: 1.5 is not a whole number"},
		{"jobs", job("limit_s", "0"), "f:2: limit_s: out of range: 0 is not from 0.01 to 1e+09"},
		{"jobs", job("limit_s", "UNLIMITED"), `f:2: limit_s: "UNLIMITED" is not a number`},
		{"jobs", jobs + "0,a\n1,0,a\n", `f:3: job: "1" stands there twice`},
		{"jobs", "job,submit_s,app\n\"1\n2\",0,a\n", `f:2: job: "1\n2" has characters that can't be printed`},
		{"jobs", jobs + "0,\xff\n", `f:2: app: "\xff" has characters that can't be printed`},
		{"jobs", jobs + "0," + long[:257] + "\n", "f:2: app: out of range: a name of 257 bytes, at most 256"},
		// The line is the value's, not the row's start.
		{"jobs", "job,submit_s,note,app\n1,0,\"two\nlines\",\n", "f:3: app: the value is missing"},

		{"profiles", profiles + "a,100.1\n", "f:2: gpu_util: out of range: 100.1 is not from 0 to 100"},
		{"profiles", profiles + "a,\n", "f:2: gpu_util: the value is missing: it is the part of the run in which a kernel " +
			"ran, in percent (nvidia-smi's utilization.gpu, on average); leave an application out for which it isn't known"},
		{"profiles", profile("duration_s", "0"), "f:2: duration_s: out of range: 0 is not from 0.01 to 1e+09"},
		{"profiles", profile("mem_util", "101"), "f:2: mem_util: out of range: 101 is not from 0 to 100"},
		{"profiles", profile("step_ms", "0"), "f:2: step_ms: out of range: 0 is not from 1e-06 to 1e+09"},
		{"profiles", profile("mem_mib", "-1"), "f:2: mem_mib: out of range: -1 is not from 0 to 1e+07"},
		{"profiles", profile("pcie_mbps", "7 GB"), `f:2: pcie_mbps: "7 GB" is not a number`},
		{"profiles", profiles + "a,5\na,6\n", `f:3: app: "a" stands there twice`},

		{"sacct", "JobID|User\n", "f:1: JobName: the header lacks this column; it has JobID|User"},
		{"sacct", "JobID|JobName|Submit|End\n", "f:1: Start: the header lacks this column; it has JobID|JobName|Submit|End"},
		{"sacct", sacctHead, "f: there is no row in it"},
		{"sacct", "\n", "f: the file is empty"},
		{
			"sacct", sacctHead + "1|a|u|2024\n",
			"f: there is no row in it that can be used: 1 with a line break in its name, or cut short",
		},
		{
			"sacct", sacctHead + "1|a|u|yesterday|5|COMPLETED|gres/gpu=1\n",
			`f:2: Submit: "yesterday" is not a time like 2024-01-31T23:59:59`,
		},
		{"sacct", sacctHead + stamped + "long|COMPLETED|gres/gpu=1\n", `f:2: ElapsedRaw: "long" is not a number`},
		{"sacct", sacctHead + stamped + "5|COMPLETED|gres/gpu=two\n", `f:2: AllocTRES: "two" is not a number`},
		{"sacct", sacctHead + stamped + "5|PENDING|gres/gpu=1\n", "f: there is no row in it that can be used: 1 not ended"},
		{
			"sacct", "JobID|JobName|User|Submit|Elapsed|Timelimit\n" + stamped + "05:00|soon\n",
			`f:2: Timelimit: "soon" is not a run time: [days-][hours:]minutes:seconds`,
		},
		{
			"sacct", "JobID|JobName|User|Submit|Elapsed|TimelimitRaw\n" + stamped + "05:00|-5\n",
			"f:2: TimelimitRaw: out of range: -5 is not from 0 to 1e+07",
		},
		{
			"sacct", "JobID|JobName|Comment|Submit|ElapsedRaw\n1|a|x|y|2024-01-01T00:00:00|5\n",
			`f:2: 6 fields, the header has 5: a user's text contains "|"; print no column with text of users but JobName`,
		},
	} {
		err := readers[c.reader](strings.NewReader(c.text))
		var where *table.Error
		if !errors.As(err, &where) || err.Error() != c.want {
			t.Errorf("%s %.60q:\n got %v\nwant %s", c.reader, c.text, err, c.want)
		}
	}
}

// long is a line of more bytes than are read.
var long = strings.Repeat("a", table.MaxLine+1)

// job and profile are files with one row, and one column more than they need.
func job(col, value string) string { return "job,submit_s,app," + col + "\n1,7,a," + value + "\n" }

func profile(col, value string) string { return "app,gpu_util," + col + "\na,5," + value + "\n" }

func TestReadFails(t *testing.T) {
	broken := errors.New("disk")
	for name, read := range readers {
		err := read(iotest.ErrReader(broken))
		var where *table.Error
		if !errors.As(err, &where) || !errors.Is(err, broken) {
			t.Errorf("%s: %v, want an *Error that wraps the reader's", name, err)
		}
	}
}

// line is what a trace says of a job.
type line struct {
	job, app, user         string
	submitS, tookS, limitS float64 // submitS since 1970
	gpus                   int     // if they are several
}

func said(runs []history.Run) (out []line) {
	for i := range runs {
		r := &runs[i]
		submitS := r.Ready.Sub(time.Unix(0, 0)).Seconds()
		out = append(out, line{r.Ref, r.App, r.User, submitS, r.DurationS(), r.OwnLimitS(), r.WholeGPUs})
	}
	return out
}

// Columns come in any order, with others among them; a name may hold what CSV quotes.
func TestReadJobs(t *testing.T) {
	text := "\ufeffUser, app ,extra,submit_s,job,duration_s,gpus,limit_s\r\n" +
		"u1,\"a,b\",x,10.5,2,,4,3600\r\n,c,,3,1,7,,\r\n"
	got := must.Get(ReadJobs(strings.NewReader(text), "f", "c", "a,b"))(t)
	must.Equal(t, said(got), []line{
		{job: "1", submitS: 3, app: "c", tookS: 7},
		{job: "2", submitS: 10.5, app: "a,b", user: "u1", gpus: 4, limitS: 3600},
	})
}

func TestReadProfiles(t *testing.T) {
	text := "app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms\n" +
		"full,60,97,30,1784,50,900,110\n" +
		"bare,,40,,,,,\n"
	got := must.Get(ReadProfiles(strings.NewReader(text), "f"))(t)
	full, bare := got[0], got[1]
	if u := full.At(59); u.GPU != 0.97 || u.Core != 0.5 || u.MemMiB != 1784 || u.PCIeMBps != 900 ||
		full.DurationS != 60 || full.PeriodS != 60 || full.StepS != 0.11 || !HasDuration(full) {
		t.Errorf("full: %+v", full)
	}
	if u := bare.At(0); u.GPU != 0.4 || math.Abs(u.Core-0.34) > 1e-12 || u.MemMiB != 0 || u.PCIeMBps != 0 ||
		bare.StepS != 0 || HasDuration(bare) || bare.Validate() != nil {
		t.Errorf("bare: %+v", bare)
	}
}

func pair(victim, aggressor string, slowdown float64) Pair {
	return Pair{Victim: victim, Aggressor: aggressor, Slowdown: slowdown}
}

func TestReadPairs(t *testing.T) {
	got := must.Get(ReadPairs(strings.NewReader("# where from\nslowdown,victim,aggressor,aggressor2\n0.9,a,b,\n# "+
		"more\n1.5,b,a,\n1.1,a,b,\n3,a,b,b\n"), "f", "a", "b"))(t)
	three := Pair{Victim: "a", Aggressor: "b", More: []string{"b"}, Slowdown: 3}
	must.Equal(t, got, []Pair{pair("a", "b", 0.9), pair("b", "a", 1.5), pair("a", "b", 1.1), three})
}

func TestReadSacct(t *testing.T) {
	const text = `JobID|JobName|User|Submit|Start|End|Elapsed|State|AllocTRES|ReqTRES
7|late|u1|2024-01-01T10:01:00|2024-01-01T10:02:00|2024-01-02T10:02:03|1-00:00:03|COMPLETED|billing=1,cpu=1,gres/gpu:a100=2,gres/gpu=2,mem=1G|cpu=1
7.batch|batch||2024-01-01T10:02:00|2024-01-01T10:02:00|2024-01-02T10:02:03|1-00:00:03|COMPLETED|cpu=1|
7.extern|extern||2024-01-01T10:02:00|2024-01-01T10:02:00|2024-01-02T10:02:03|1-00:00:03|COMPLETED|cpu=1|
8_1|a|b|u2|2024-01-01T10:00:30|2024-01-01T10:02:00|2024-01-01T10:03:00|01:00|CANCELLED by 1000||gres/gpu:a100=1,gres/gpu:v100=2
9|cpu|u2|2024-01-01T10:00:00|2024-01-01T10:02:00|2024-01-01T10:03:00|00:01:00|COMPLETED|cpu=4|
10|now|u2|2024-01-01T10:00:00|2024-01-01T10:02:00|Unknown|00:01:00|RUNNING|gres/gpu=1|
11|never|u2|2024-01-01T10:00:00|None|2024-01-01T10:03:00|00:00:00|CANCELLED by 0||gres/gpu=1
13|mig|u2|2024-01-01T10:00:00|2024-01-01T10:02:00|2024-01-01T10:03:00|00:01:00|COMPLETED|cpu=8,gres/gpu:a100_1g.5gb=1,gres/gpu=1|
14|two
lines|u2|2024-01-01T10:00:00|2024-01-01T10:02:00|2024-01-01T10:03:00|00:01:00|COMPLETED|gres/gpu=1|
15|in

three|u2|2024-01-01T10:00:00|2024-01-01T10:02:00|2024-01-01T10:03:00|00:01:00|COMPLETED|gres/gpu=1|
16|two
lines|with|bars|u2|2024-01-01T10:00:00|2024-01-01T10:02:00|2024-01-01T10:03:00|00:01:00|COMPLETED|gres/gpu=1|
12|again|u3|2024-01-01T10:00:00|2024-01-01T10:00:00|2024-01-01T10:00:09|00:00:09|NODE_FAIL|gres/mps=50|
12|again|u3|2024-01-01T10:00:10|2024-01-01T10:00:11|2024-01-01T10:00:31|00:20.500|FAILED|gres/mps=50|
`
	got, skipped, err := ReadSacct(strings.NewReader(text), "f")
	if err != nil {
		t.Fatal(err)
	}
	const ten = 1704103200 // 2024-01-01T10:00:00
	must.Equal(t, said(got), []line{
		{job: "12", submitS: ten + 10, app: "again", tookS: 20.5, user: "u3"},
		{job: "8_1", submitS: ten + 30, app: "a|b", tookS: 60, user: "u2", gpus: 3},
		{job: "7", submitS: ten + 60, app: "late", tookS: 86403, user: "u1", gpus: 2},
	})
	must.Equal(t, skipped, table.Skipped{noGPU: 1, unended: 1, noRunTime: 1, requeued: 1, onMIG: 1, torn: 3}, "skipped")
}

// A limit is minutes in TimelimitRaw, a duration in Timelimit; a word in their place is none.
func TestLimitsAreMinutesOrDurations(t *testing.T) {
	const head, row = "JobID|JobName|Submit|Elapsed|", "1|a|2024-01-01T00:00:00|05:00|"
	for text, want := range map[string]float64{
		"Timelimit\n" + row + "1-02:00:00":                       26 * 3600,
		"Timelimit\n" + row + "UNLIMITED":                        0,
		"Timelimit\n" + row + "Partition_Limit":                  0,
		"Timelimit\n" + row:                                      0,
		"TimelimitRaw|Timelimit\n" + row + "90|01:30:00":         5400,
		"TimelimitRaw|Timelimit\n" + row + "UNLIMITED|UNLIMITED": 0,
		"TimelimitRaw|Timelimit\n" + row + "|00:10:00":           600,
	} {
		jobs, _, err := ReadSacct(strings.NewReader(head+text+"\n"), "f")
		must.OK(t, err)
		must.Equal(t, jobs[0].OwnLimitS(), want, "%s", text)
	}
}

// Without TRES columns every allocation counts; End − Start stands in for a run
// time, epochs for stamps, and --parsable ends each line with a bar.
func TestReadSacctLess(t *testing.T) {
	const text = "JobIDRaw|JobName|Start|End|\r\n1|a\tb|1700000000|1700000060|\r\n2||1700000001|Unknown|\r\n"
	got, skipped, err := ReadSacct(strings.NewReader(text), "f")
	if err != nil {
		t.Fatal(err)
	}
	must.Equal(t, said(got), []line{{job: "1", app: "a?b", submitS: 1700000000, tookS: 60}})
	must.Equal(t, skipped.String(), "1 not ended")
}

func TestReadJobsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for text, want := range map[string]string{
		"\ufeff\r\njob,submit_s,app\r\n1,0,csv\r\n":                              "csv",
		"# a comment\njob,submit_s,app\n1,0,csv\n":                               "csv",
		sacctHead + "1|sacct|u|2024-01-01T00:00:00|5|COMPLETED|cpu=1,gres/gpu=1": "sacct",
	} {
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		jobs, _, err := ReadJobsFile(path)
		if err != nil || len(jobs) != 1 || jobs[0].App != want {
			t.Errorf("%q: %+v, %v; want one job of %s", text, jobs, err, want)
		}
		// Users give jobs all sorts of names.
		if _, _, err = ReadJobsFile(path, "other"); errors.Is(err, table.ErrUnknownApp) != (want == "csv") {
			t.Errorf("%q: %v, with one application known", text, err)
		}
	}
	for text, want := range map[string]error{
		"": table.ErrEmpty, " \n": table.ErrEmpty, "hello\n": errWhat,
		"\x00\x01": errWhat,
	} {
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		if _, _, err := ReadJobsFile(path); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
	if _, _, err := ReadJobsFile(path + "-absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
}
