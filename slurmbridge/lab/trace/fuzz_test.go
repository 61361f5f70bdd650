package trace

import (
	"errors"
	"math"
	"strings"
	"testing"
)

// judge fails unless err is nil or an *Error.
func judge(t *testing.T, err error) bool {
	var where *Error
	if err != nil && !errors.As(err, &where) {
		t.Errorf("%T %v, want an *Error", err, err)
	}
	return err == nil
}

func judgeJobs(t *testing.T, jobs []Job, unknownDuration bool) {
	if len(jobs) == 0 {
		t.Error("neither a job nor an error")
	}
	for i, j := range jobs {
		given := j.DurationS >= minDurationS || unknownDuration && j.DurationS == 0
		if j.ID == "" || j.App == "" || !given || j.DurationS > maxDurationS || !(j.SubmitS >= 0) || math.IsInf(j.SubmitS, 0) || j.GPUs < 0 ||
			!(j.LimitS >= 0 && j.LimitS <= maxDurationS) || j.DeadlineS != 0 && !(j.DeadlineS > j.SubmitS && j.DeadlineS <= maxSubmitS) {
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

func FuzzReadJobs(f *testing.F) {
	f.Add("job,submit_s,app,duration_s,user\n1,0,vgg11,55,u1\n2,3.5,\"a,b\",,\n")
	f.Add("\ufeffapp,job,gpus,submit_s\r\na,1,2,0\r\n")
	f.Add("job,submit_s,app\n1,NaN,a\n")
	f.Add("job,submit_s,app\n\"1\n")
	f.Add("job,submit_s,app,limit_s,deadline_s\n1,5,a,60,\n2,5,a,,65.5\n3,5,a,1e9,5\n")
	f.Fuzz(func(t *testing.T, text string) {
		if jobs, err := ReadJobs(strings.NewReader(text), "f"); judge(t, err) {
			judgeJobs(t, jobs, true)
		}
	})
}

func FuzzReadProfiles(f *testing.F) {
	f.Add("app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms\nx,60,97,30,1784,50,900,110\ny,,40,,,,,\n")
	f.Add("app,gpu_util\na,101\n")
	f.Add("app,gpu_util\na,0x1p2\n")
	f.Fuzz(func(t *testing.T, text string) {
		profiles, err := ReadProfiles(strings.NewReader(text), "f")
		if !judge(t, err) {
			return
		}
		if len(profiles) == 0 {
			t.Error("neither a profile nor an error")
		}
		for _, p := range profiles {
			if err := p.Validate(); err != nil || p.App == "" {
				t.Errorf("%+v: %v", p, err)
			}
		}
	})
}

func FuzzReadPairs(f *testing.F) {
	f.Add("victim,aggressor,slowdown\na,b,1.5\nb,a,0.9\n")
	f.Add("slowdown,victim,aggressor\n1e400,a,b\n")
	f.Add("victim,aggressor,slowdown\n\"a\",\"b\"\"\",1\n")
	f.Fuzz(func(t *testing.T, text string) {
		pairs, err := ReadPairs(strings.NewReader(text), "f")
		if !judge(t, err) {
			return
		}
		if len(pairs) == 0 {
			t.Error("neither a pair nor an error")
		}
		for _, p := range append(pairs, MeanPairs(pairs)...) {
			if p.Victim == "" || p.Aggressor == "" || !(p.Slowdown >= minSlowdown && p.Slowdown <= maxSlowdown) {
				t.Errorf("%+v", p)
			}
		}
	})
}

func FuzzReadSWF(f *testing.F) {
	f.Add("; Version: 2.2\n" + swfLine() + swfLine("job number", "2", "run time", "-1"))
	f.Add(swfLine("status", "3"))
	f.Add(swfLine("executable", "1e15"))
	f.Add(swfLine("requested time", "7200") + swfLine("job number", "2", "requested time", "1e12"))
	f.Fuzz(func(t *testing.T, text string) {
		if jobs, _, err := ReadSWF(strings.NewReader(text), "f"); judge(t, err) {
			judgeJobs(t, jobs, false)
		}
	})
}

func FuzzReadSacct(f *testing.F) {
	f.Add(sacctHead + "1|a|b|u|2024-01-01T00:00:00|5|COMPLETED|gres/gpu:a100=2\n1.batch|batch||2024-01-01T00:00:00|5|COMPLETED|cpu=1\n")
	f.Add("JobID|JobName|Submit|Elapsed|Timelimit|TimelimitRaw\n1|a|2024-01-01T00:00:00|05:00|1-00:00:00|UNLIMITED\n2|a|2024-01-01T00:00:00|05:00|x|1e9\n")
	f.Add("JobIDRaw|JobName|Start|End|\r\n1|a\tb|1700000000|1700000060|\r\n")
	f.Add("JobID|JobName|Submit|Elapsed|ReqTRES\n1||2024-01-01T00:00:00|1-00:00:01.5|gres/gpu=1e9\n")
	f.Fuzz(func(t *testing.T, text string) {
		if jobs, _, err := ReadSacct(strings.NewReader(text), "f"); judge(t, err) {
			judgeJobs(t, jobs, false)
		}
	})
}

func FuzzRecognise(f *testing.F) {
	for _, s := range []string{"job,submit_s", "; x", swfLine(), sacctHead, "", "\ufeff\n1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, start string) {
		if got := recognise(start); strings.TrimSpace(strings.TrimPrefix(start, "\ufeff")) != "" && got == "" {
			t.Errorf("%q is called empty", start)
		}
	})
}
