package trace

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// readers are all readers, by what they read, with the results left out.
var readers = map[string]func(r io.Reader) error{
	"jobs":     func(r io.Reader) error { _, err := ReadJobs(r, "f"); return err },
	"profiles": func(r io.Reader) error { _, err := ReadProfiles(r, "f"); return err },
	"pairs":    func(r io.Reader) error { _, err := ReadPairs(r, "f", "a", "b"); return err },
	"sacct":    func(r io.Reader) error { _, _, err := ReadSacct(r, "f"); return err },
}

const sacctHead = "JobID|JobName|User|Submit|ElapsedRaw|State|AllocTRES\n"

func TestRefused(t *testing.T) {
	cases := []struct {
		reader, text, want string
		is                 error
	}{
		{
			"pairs", "victim,aggressor,slowdown\na,b,1.5\n\na,b,abc\n", `f:4: slowdown: "abc" is not a number`,
			table.ErrNotNumber,
		},
		{
			"pairs", "victim,aggressor,slowdown\na,b,NaN\n", `f:2: slowdown: out of range: "NaN" is not a finite number`,
			table.ErrOutOfRange,
		},
		{
			"pairs", "victim,aggressor,slowdown\na,b,+Inf\n", `f:2: slowdown: out of range: "+Inf" is not a finite number`,
			table.ErrOutOfRange,
		},
		{
			"pairs", "victim,aggressor,slowdown\na,b,1e999\n", `f:2: slowdown: out of range: "1e999" is not a finite number`,
			table.ErrOutOfRange,
		},
		{
			"pairs", "victim,aggressor,slowdown\na,b,0\n", "f:2: slowdown: out of range: 0 is not from 0.5 to 1000",
			table.ErrOutOfRange,
		},
		{
			"pairs", "victim,aggressor,slowdown\na,b,-1\n", "f:2: slowdown: out of range: -1 is not from 0.5 to 1000",
			table.ErrOutOfRange,
		},
		{"pairs", "victim,aggressor,slowdown\na,b,\n", "f:2: slowdown: the value is missing", table.ErrMissing},
		{"pairs", "victim,aggressor,slowdown\na,b\n", "f:2: the row doesn't have the header's 3 columns", nil},
		{
			"pairs", "# where from\nvictim,aggressor\na,b\n",
			"f:2: slowdown: the header lacks this column; it has victim,aggressor", table.ErrNoColumn,
		},
		{
			"pairs", "victim,aggressor\na,b\n", "f:1: slowdown: the header lacks this column; it has victim,aggressor",
			table.ErrNoColumn,
		},
		{"pairs", "victim,aggressor,slowdown,Victim\n", `f:1: column "Victim" stands there twice`, table.ErrTwice},
		{"pairs", "victim,aggressor,slowdown\n", "f: there is no row in it", table.ErrNoRows},
		{"pairs", "", "f: the file is empty", table.ErrEmpty},
		{"pairs", "\ufeff", "f: the file is empty", table.ErrEmpty},
		{
			"pairs", "victim,aggressor,slowdown\na,c,1.5\n", `f:2: aggressor: unknown application "c"; there are a, b`,
			table.ErrUnknownApp,
		},
		{"pairs", "victim,aggressor,slowdown\n\"a,b,1\n", `f:2: at byte 8: extraneous or missing " in quoted-field`, nil},
		{
			"pairs", "victim,aggressor,slowdown\n" + strings.Repeat("a", table.MaxLine+1),
			"f:2: the line is too long: more than 1048576 bytes", table.ErrLongLine,
		},
		{
			"pairs", "victim,aggressor,slowdown\n\n\na,b,1\n" + strings.Repeat("a", table.MaxLine+1),
			"f:5: the line is too long: more than 1048576 bytes", table.ErrLongLine,
		},

		{"jobs", "job,submit_s,app\n1,0,\n", "f:2: app: the value is missing", table.ErrMissing},
		{"jobs", "job,submit_s,app\n1,-1,a\n", "f:2: submit_s: out of range: -1 is not from 0 to 1e+11", table.ErrOutOfRange},
		{
			"jobs", "job,submit_s,app,duration_s\n1,0,a,0\n", "f:2: duration_s: out of range: 0 is not from 0.01 to 1e+09",
			table.ErrOutOfRange,
		},
		{
			"jobs", "job,submit_s,app,duration_s\n1,0,a,-5\n", "f:2: duration_s: out of range: -5 is not from 0.01 to 1e+09",
			table.ErrOutOfRange,
		},
		{
			"jobs", "job,submit_s,app,GPUs\n1,0,a,1.5\n", "f:2: GPUs: out of range: 1.5 is not a whole number",
			table.ErrOutOfRange,
		},
		{
			"jobs", "job,submit_s,app,limit_s\n1,0,a,0\n", "f:2: limit_s: out of range: 0 is not from 0.01 to 1e+09",
			table.ErrOutOfRange,
		},
		{
			"jobs", "job,submit_s,app,limit_s\n1,0,a,UNLIMITED\n", `f:2: limit_s: "UNLIMITED" is not a number`,
			table.ErrNotNumber,
		},
		{
			"jobs", "job,submit_s,app,deadline_s\n1,0,a,60\n2,10,a,10\n",
			"f:3: deadline_s: out of range: 10 is not after the submission at 10", table.ErrOutOfRange,
		},
		{"jobs", "job,submit_s,app\n1,0,a\n1,0,a\n", `f:3: job: "1" stands there twice`, table.ErrTwice},
		{"jobs", "job,submit_s,app\n\"1\n2\",0,a\n", `f:2: job: "1\n2" has characters that can't be printed`, nil},
		{"jobs", "job,submit_s,app\n1,0,\xff\n", `f:2: app: "\xff" has characters that can't be printed`, nil},
		{
			"jobs", "job,submit_s,app\n1,0," + strings.Repeat("a", 257) + "\n",
			"f:2: app: out of range: a name of 257 bytes, at most 256", table.ErrOutOfRange,
		},
		// The line is the value's, not the row's start.
		{"jobs", "job,submit_s,note,app\n1,0,\"two\nlines\",\n", "f:3: app: the value is missing", table.ErrMissing},

		{
			"profiles", "app,gpu_util\na,100.1\n", "f:2: gpu_util: out of range: 100.1 is not from 0 to 100",
			table.ErrOutOfRange,
		},
		{
			"profiles", "app,gpu_util\na,\n",
			"f:2: gpu_util: the value is missing: it is the part of the run in which a kernel ran, in percent (nvidia-smi's " +
				"utilization.gpu, on average); leave an application out for which it isn't known", table.ErrMissing,
		},
		{
			"profiles", "app,gpu_util,duration_s\na,5,0\n", "f:2: duration_s: out of range: 0 is not from 0.01 to 1e+09",
			table.ErrOutOfRange,
		},
		{
			"profiles", "app,gpu_util,mem_util\na,5,101\n", "f:2: mem_util: out of range: 101 is not from 0 to 100",
			table.ErrOutOfRange,
		},
		{
			"profiles", "app,gpu_util,step_ms\na,5,0\n", "f:2: step_ms: out of range: 0 is not from 1e-06 to 1e+09",
			table.ErrOutOfRange,
		},
		{
			"profiles", "app,gpu_util,mem_mib\na,5,-1\n", "f:2: mem_mib: out of range: -1 is not from 0 to 1e+07",
			table.ErrOutOfRange,
		},
		{"profiles", "app,gpu_util,pcie_mbps\na,5,7 GB\n", `f:2: pcie_mbps: "7 GB" is not a number`, table.ErrNotNumber},
		{"profiles", "app,gpu_util\na,5\na,6\n", `f:3: app: "a" stands there twice`, table.ErrTwice},

		{"sacct", "JobID|User\n", "f:1: JobName: the header lacks this column; it has JobID|User", table.ErrNoColumn},
		{
			"sacct", "JobID|JobName|Submit|End\n", "f:1: Start: the header lacks this column; it has JobID|JobName|Submit|End",
			table.ErrNoColumn,
		},
		{"sacct", sacctHead, "f: there is no row in it", table.ErrNoRows},
		{"sacct", "\n", "f: the file is empty", table.ErrEmpty},
		{
			"sacct", sacctHead + "1|a|u|2024\n",
			"f: there is no row in it that can be used: 1 with a line break in its name, or cut short", table.ErrNoRows,
		},
		{
			"sacct", sacctHead + "1|a|u|yesterday|5|COMPLETED|gres/gpu=1\n",
			`f:2: Submit: "yesterday" is no time like 2024-01-31T23:59:59`, nil,
		},
		{
			"sacct", sacctHead + "1|a|u|2024-01-01T00:00:00|long|COMPLETED|gres/gpu=1\n",
			`f:2: ElapsedRaw: "long" is not a number`, table.ErrNotNumber,
		},
		{
			"sacct", sacctHead + "1|a|u|2024-01-01T00:00:00|5|COMPLETED|gres/gpu=two\n", `f:2: AllocTRES: "two" is not a number`,
			table.ErrNotNumber,
		},
		{
			"sacct", sacctHead + "1|a|u|2024-01-01T00:00:00|5|PENDING|gres/gpu=1\n",
			"f: there is no row in it that can be used: 1 not ended", table.ErrNoRows,
		},
		{
			"sacct", "JobID|JobName|Submit|Elapsed|Timelimit\n1|a|2024-01-01T00:00:00|05:00|soon\n",
			`f:2: Timelimit: "soon" is no run time: [days-][hours:]minutes:seconds`, nil,
		},
		{
			"sacct", "JobID|JobName|Submit|Elapsed|TimelimitRaw\n1|a|2024-01-01T00:00:00|05:00|-5\n",
			"f:2: TimelimitRaw: out of range: -5 is not from 0 to 1e+07", table.ErrOutOfRange,
		},
		{
			"sacct", "JobID|JobName|Comment|Submit|ElapsedRaw\n1|a|x|y|2024-01-01T00:00:00|5\n",
			`f:2: 6 fields, the header has 5: a "|" in a text that a user wrote; ask sacct for JobName alone of such columns`,
			nil,
		},
	}
	for _, c := range cases {
		err := readers[c.reader](strings.NewReader(c.text))
		var where *Error
		if !errors.As(err, &where) {
			t.Errorf("%s %.60q: error %v, want an *Error", c.reader, c.text, err)
			continue
		}
		if err.Error() != c.want {
			t.Errorf("%s %.60q:\n got %s\nwant %s", c.reader, c.text, err, c.want)
		}
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s %.60q: %v doesn't wrap %v", c.reader, c.text, err, c.is)
		}
	}
}

func TestReadFails(t *testing.T) {
	broken := errors.New("disk")
	for name, read := range readers {
		err := read(iotest.ErrReader(broken))
		var where *Error
		if !errors.As(err, &where) || !errors.Is(err, broken) {
			t.Errorf("%s: %v, want an *Error that wraps the reader's", name, err)
		}
	}
}

func TestReadJobs(t *testing.T) {
	text := "\ufeffUser, app ,extra,submit_s,job,duration_s\r\nu1,\"a,b\",x,10.5,2,\r\n,c,,3,1,7\r\n"
	got := must.Get(ReadJobs(strings.NewReader(text), "f", "c", "a,b"))(t)
	want := []Job{{ID: "1", SubmitS: 3, App: "c", DurationS: 7}, {ID: "2", SubmitS: 10.5, App: "a,b", User: "u1"}}
	must.Equal(t, got, want)
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
	got := must.Get(ReadPairs(strings.NewReader("# where from\nslowdown,victim,aggressor\n0.9,a,b\n# "+
		"more\n1.5,b,a\n1.1,a,b\n"), "f", "a", "b"))(t)
	if want := []Pair{pair("a", "b", 0.9), pair("b", "a", 1.5), pair("a", "b", 1.1)}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if want := []Pair{pair("a", "b", 1), pair("b", "a", 1.5)}; !reflect.DeepEqual(MeanPairs(got), want) {
		t.Errorf("means %v, want %v", MeanPairs(got), want)
	}
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
	want := []Job{
		{ID: "12", SubmitS: 0, App: "again", DurationS: 20.5, User: "u3", GPUs: 1},
		{ID: "8_1", SubmitS: 20, App: "a|b", DurationS: 60, User: "u2", GPUs: 3},
		{ID: "7", SubmitS: 50, App: "late", DurationS: 86403, User: "u1", GPUs: 2},
	}
	must.Equal(t, got, want)
	if want := (Skipped{noGPU: 1, unended: 1, noRunTime: 1, requeued: 1, onMIG: 1, torn: 3}); !reflect.DeepEqual(skipped,
		want) {
		t.Errorf("skipped %v, want %v", skipped, want)
	}
}

// A limit is minutes in TimelimitRaw, a duration in Timelimit; a word in their place is none.
func TestLimits(t *testing.T) {
	limits := func(jobs []Job, err error) (out []float64) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			out = append(out, j.LimitS)
		}
		return out
	}
	sacct := func(text string) ([]Job, error) {
		jobs, _, err := ReadSacct(strings.NewReader(text), "f")
		return jobs, err
	}
	const row = "|a|2024-01-01T00:00:00|05:00|"
	for _, c := range []struct {
		got, want []float64
	}{
		{
			limits(sacct("JobID|JobName|Submit|Elapsed|Timelimit\n1" + row + "1-02:00:00\n2" + row + "UNLIMITED\n3" + row +
				"Partition_Limit\n4" + row + "\n")),
			[]float64{26 * 3600, 0, 0, 0},
		},
		{
			limits(sacct("JobID|JobName|Submit|Elapsed|TimelimitRaw|Timelimit\n1" + row + "90|01:30:00\n2" + row +
				"UNLIMITED|UNLIMITED\n3" + row + "|00:10:00\n")),
			[]float64{5400, 0, 600},
		},
		{
			limits(ReadJobs(strings.NewReader("job,submit_s,app,limit_s,deadline_s\n1,5,a,60,\n2,5,a,,65.5\n"), "f")),
			[]float64{60, 0},
		},
	} {
		must.Equal(t, c.got, c.want, "limits")
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
	if want := []Job{{ID: "1", App: "a?b", DurationS: 60}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if skipped.String() != "1 not ended" {
		t.Errorf("skipped %v", skipped)
	}
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
		jobs, _, err = ReadJobsFile(path, "other")
		if unknown := err == nil && jobs[0].Unknown; !errors.Is(err, table.ErrUnknownApp) && !(want == "sacct" && unknown) {
			t.Errorf("%q: %v, want an unknown application", text, err)
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
