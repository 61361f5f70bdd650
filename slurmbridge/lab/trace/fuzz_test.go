package trace

import (
	"errors"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
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
			var jobs []history.Run
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
func judge(t *testing.T, jobs []history.Run, open bool) {
	for i, j := range jobs {
		took := j.DurationS()
		given := took >= table.MinDurationS || open && took == 0
		if j.Ref == "" || j.App == "" || !given || took > table.MaxDurationS || j.Ready.Unix() < 0 || j.WholeGPUs < 0 ||
			!(j.OwnLimitS() >= 0 && j.OwnLimitS() <= table.MaxDurationS) {
			t.Errorf("%+v", j)
		}
		if strings.ContainsAny(j.Ref+j.App+j.User, "\n\r\x1b\x00") {
			t.Errorf("%+v can't be printed", j)
		}
		if i > 0 && j.Ready.Before(jobs[i-1].Ready) {
			t.Errorf("%+v comes too late", j)
		}
	}
}
