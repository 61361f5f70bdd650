package trace

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// Whatever a file holds, it is refused with its name, or all that is read of it can be and can be printed.
func FuzzRead(f *testing.F) {
	f.Add("jobs", "job,submit_s,app,duration_s,user\n1,0,vgg11,55,u1\n2,3.5,\"a,b\",,\n")
	f.Add("jobs", "\ufeffapp,job,gpus,submit_s\r\na,1,2,0\r\n")
	f.Add("jobs", "job,submit_s,app,limit_s\n1,5,a,60\n2,5,a,\n3,5,a,1e9\n")
	f.Add("profiles", "app,duration_s,gpu_util,mem_mib,sm_util,pcie_mbps,step_ms\nx,60,97,1784,50,900,110\ny,,40,,,,\n")
	f.Add("profiles", "app,gpu_util\na,0x1p2\n")
	f.Add("pairs", "victim,aggressor,slowdown\na,b,1.5\nb,a,0.9\n")
	f.Add("pairs", "slowdown,victim,aggressor\n1e400,a,b\n")
	f.Add("sacct", sacctHead+"1|a|b|u|2024-01-01T00:00:00|5|COMPLETED|gres/gpu:a100=2\n1.batch|batch||5|COMPLETED|cpu=1\n")
	f.Add("sacct", "JobID|JobName|Submit|Elapsed|Timelimit\n1|a|2024-01-01T00:00:00|05:00|UNLIMITED\n2|a|x|05:00|x\n")
	f.Add("sacct", "JobIDRaw|JobName|Start|End|\r\n1|a\tb|1700000000|1700000060|\r\n")
	f.Add("sacct", "JobID|JobName|Submit|Elapsed|ReqTRES\n1||2024-01-01T00:00:00|1-00:00:01.5|gres/gpu=1e9\n")
	f.Fuzz(func(t *testing.T, reader, text string) {
		var n int
		var err error
		switch r := strings.NewReader(text); reader {
		case "jobs", "sacct":
			var jobs []Job
			if reader == "jobs" {
				jobs, err = ReadJobs(r, "f")
			} else {
				jobs, _, err = ReadSacct(r, "f")
			}
			judge(t, jobs, reader == "jobs")
			n = len(jobs)
		case "profiles":
			profiles, e := ReadProfiles(r, "f")
			for _, p := range profiles {
				if err := p.Validate(); err != nil || p.App == "" {
					t.Errorf("%+v: %v", p, err)
				}
			}
			n, err = len(profiles), e
		case "pairs":
			pairs, e := ReadPairs(r, "f")
			for _, p := range pairs {
				if p.Victim == "" || p.Aggressor == "" || !(p.Slowdown >= minSlowdown && p.Slowdown <= maxSlowdown) {
					t.Errorf("%+v", p)
				}
			}
			n, err = len(pairs), e
		default:
			t.Skip()
		}
		if where := (*table.Error)(nil); (n > 0) == (err != nil) || err != nil && !errors.As(err, &where) {
			t.Errorf("%d rows, error %T %v", n, err, err)
		}
	})
}

// judge fails where a job can't be. CSV may leave its duration open.
func judge(t *testing.T, jobs []Job, open bool) {
	for i, j := range jobs {
		given := j.DurationS >= table.MinDurationS || open && j.DurationS == 0
		if j.ID == "" || j.App == "" || !given || j.DurationS > table.MaxDurationS || !(j.SubmitS >= 0) ||
			math.IsInf(j.SubmitS, 0) || j.GPUs < 0 ||
			!(j.LimitS >= 0 && j.LimitS <= table.MaxDurationS) {
			t.Errorf("%+v", j)
		}
		if strings.ContainsAny(j.ID+j.App+j.User, "\n\r\x1b\x00") {
			t.Errorf("%+v can't be printed", j)
		}
		if i > 0 && j.SubmitS < jobs[i-1].SubmitS {
			t.Errorf("%+v comes too late", j)
		}
	}
}
