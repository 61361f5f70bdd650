package text

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/hostlist"
)

// reservations is what 22.05.8 printed, SLURM_TIME_FORMAT=%s and not, and one without nodes.
const reservations = `ReservationName=m1 StartTime=1795331689 EndTime=1795335289 Duration=01:00:00 Nodes=n[1-2] NodeCnt=2 CoreCnt=32 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=32 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)
ReservationName=m2 StartTime=2026-11-22T07:14:49 EndTime=2026-11-22T08:14:49 Duration=01:00:00 Nodes=n[1-900000] NodeCnt=1 CoreCnt=16
ReservationName=lic StartTime=1795331689 EndTime=1795335289 Nodes=(null) NodeCnt=0 Licenses=matlab:5
`

func TestParseReservations(t *testing.T) {
	all := ParseReservations([]byte(reservations))
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	if r := all[0]; r.Name != "m1" || !r.Start.Equal(time.Unix(1795331689, 0)) || r.End.Sub(r.Start) != time.Hour ||
		!r.Holds("n2") || r.Holds("n3") {
		t.Errorf("%+v", r)
	}
	if r := all[1]; r.Start.Format(time.TimeOnly) != "07:14:49" || !r.Holds("n3") {
		t.Errorf("a list too long to be read holds any node: %+v", r)
	}
	for words, want := range map[string]job.Reservation{
		"Flags=IGNORE_JOBS,MAGNETIC Users=games,news": {Magnetic: true, Users: []string{"games", "news"}},
		"Flags=MAGNETIC Users=(null) Accounts=lab":    {Magnetic: true},
		"Flags=MAGNETIC Users=-games":                 {Magnetic: true},
		"Flags=IGNORE_JOBS Users=root":                {Users: []string{"root"}},
	} {
		r := ParseReservations([]byte("ReservationName=r Nodes=n1 " + words + "\n"))[0]
		must.Equal(t, job.Reservation{Magnetic: r.Magnetic, Users: r.Users}, want, words)
	}
	must.Equal(t, ParseReservations([]byte("No reservations in the system\n")), nil)
}

// clock writes a duration as Slurm does.
func clock(d time.Duration) string {
	s := int64(d / time.Second)
	text := fmt.Sprintf("%02d:%02d:%02d", s/3600%24, s/60%60, s%60)
	if s >= 86400 {
		text = fmt.Sprintf("%d-%s", s/86400, text)
	}
	if rest := d % time.Second; rest > 0 {
		text += fmt.Sprintf(".%09d", rest)
	}
	return text
}

// A job's name can't change what another column says, whatever its user wrote, and loses no other job's row.
func FuzzSacctName(f *testing.F) {
	f.Add("a|b")
	f.Add("|5|COMPLETED|gres/gpu=9")
	f.Fuzz(func(t *testing.T, name string) {
		if len(name) > table.MaxLine/2 {
			t.Skip()
		}
		read := func(name string, do func(r *SacctRow)) error {
			sacct := "JobID|JobName|User|AllocTRES\n5|" + name + "|u|gres/gpu=1\n6|next|v|gres/gpu=2\n"
			_, err := ReadSacct(strings.NewReader(sacct), "f", func(*SacctRow) {}, do)
			return err
		}
		next := false
		if err := read(name, func(r *SacctRow) {
			next = next || r.Text("jobid") == "6" && r.Text("user") == "v"
		}); err == nil && !next {
			t.Errorf("%q: the next job is lost", name)
		}
		name = strings.NewReplacer("\n", " ", "\r", " ").Replace(name)
		n := 0
		err := read(name, func(r *SacctRow) {
			if n++; n == 2 {
				return
			}
			gpus, part := r.GPUs("alloctres")
			if r.Text("jobid") != "5" || r.Text("jobname") != strings.TrimSpace(name) || r.Text("user") != "u" || gpus != 1 ||
				part != Whole {
				t.Errorf("%q: job %s of %s with %d GPUs, called %q", name, r.Text("jobid"), r.Text("user"), gpus, r.Text("jobname"))
			}
		})
		if err != nil || n != 2 {
			t.Errorf("%d rows, %v", n, err)
		}
	})
}

// Whatever a command prints, each of its readers returns what there can be: names without blanks, no figure below zero,
// nothing beyond its bounds, and what Slurm said before it.
func FuzzReaders(f *testing.F) {
	for _, release := range releases {
		for _, name := range []string{"config", "partitions", "errors", "excluded"} {
			f.Add(string(recorded(f, release, name)))
		}
		for line := range strings.Lines(string(recorded(f, release, "errors"))) {
			f.Add(line)
		}
	}
	for _, out := range []string{
		"Prolog[0] = /a\nProlog[1] = /b\nA = 1 = 2\nA = 3\n= x\nA B = 4", reservations,
		"PartitionName=p Default=YES\nPartitionName=\n PartitionName=q\n",
		"ReservationName= Nodes=n1\nReservationName=r Nodes=n[ Comment=StartTime=1\n",
		"Invalid job id specified for job 7\n22_2: Job dependency problem\nx for job 1_2_3\n7: for job 8",
		"7: Requested operation not permitted (a plugin's words",
		"22_[2]: a\n22_[0-3,7]: b\n22_0-3: c\n22_[2: d\n22_2]: e\n22_[3-1]: f\n22_[0-99999999]: g",
		"x|n1\n7\n8|\n|9\n9|(null)", "7|N/A|FAILED|1|2|3|\n20|3|COMPLETED|0|N/A|N/A|\n", "||",
		"lab||root|gres/gpu=4||\nroot||lab|gres/gpu=-1,gres/gpu:a=1e9||\n", "normal|gres/gpu=K||||\n",
		"22.05.8", "23.11.0-rc1", "slurm(64030)", "300 sec", "a=1,B=2", "120_4", "gpu:a:1(S:0),mps:1K", "gpu:0,,:", "gres/mps:50",
		"gres:gpu:shared:1", "gres:shard:50(S:0,1)", "cpu=2,gres/gpu=1", "gpu:(,),:", "gres/gpu:99999999999999999999",
		"gres:mps:2147483647M,gres:mps:2147483647M",
		"1795234898", "2026-11-21T04:21:38", "N/A", "UNLIMITED", "1-02:03:04", "5:00", "00:20.500", "365-00:00:00",
		"1-", "-1", "99999999999999999999", "9:9.9.9", "1e9:00", "0-0", "4294967294",
		"100M", "1.50G", "40777023488", "1.2.3G", ".", "G", "18446744073709551615E",
	} {
		f.Add(out)
	}
	f.Fuzz(func(t *testing.T, out string) {
		has := func(ok bool, what string, value any) {
			if !ok {
				t.Errorf("%s: %+v", what, value)
			}
		}
		for key, v := range ParseConfig([]byte(out)) {
			has(key != "" && !strings.ContainsAny(key, " \t\n=") && v != "(null)" && v == strings.TrimSpace(v) &&
				!strings.Contains(v, "\n"), "setting "+key, v)
		}
		c := ParseConfig([]byte("SelectType = select/cons_tres\n" + out))
		has(c["SelectType"] == "select/cons_tres", "what stands before counts", c["SelectType"])
		partitions, all := ParsePartitions([]byte(out)), ParseReservations([]byte(out))
		has(len(partitions) <= strings.Count(out, "PartitionName="), "partitions", partitions)
		for _, p := range partitions {
			has(p.Name != "" && !strings.ContainsAny(p.Name+p.State+p.Billing, " \n"), "partition", p)
		}
		has(len(all) <= strings.Count(out, "ReservationName="), "reservations", all)
		for _, r := range all {
			has(r.Name != "" && !r.Nodes["["], "reservation", r)
		}
		for id, nodes := range ParseExcluded([]byte(out)) {
			has(id >= 0 && (!IsNone(nodes) || nodes == "") && !strings.Contains(nodes, "\n"), "excluded", nodes)
		}
		described, err := ParseDescriptions([]byte(out))
		has(err == nil || described == nil, "an answer beside an error", described)
		for ref := range described {
			has(ValidRef(ref), "described", ref)
		}
		for _, l := range ParseGPULimits(out, out, partitions) {
			has(l.Most >= 0 && l.Most <= maxCount, "limit", l)
		}
		for item := range hostlist.Items(out) {
			g, ok := parseGresItem(item)
			has(!ok || g.Name != "" && g.Count >= 0 && g.Count <= maxCount && strings.Contains(out, g.Name), "resource", g)
		}
		for _, ask := range []job.GPURequest{
			ParseRequest(TRES{out, "N/A", "", "gres:gpu:1"}), ParseRequest(TRES{PerNode: out}), ParseRequest(TRES{PerTask: out}),
		} {
			has(ask.Kind != job.NoGPU || ask == job.GPURequest{}, "no GPU", ask)
			has(ask.Count >= 0 && (ask.Kind == job.Shares) == (ask.Sharing != ""), "request", ask)
			has(ask.Kind == job.NoGPU || strings.Contains(ask.Raw, "gpu") || strings.Contains(ask.Raw, "mps") ||
				strings.Contains(ask.Raw, "shard"), "a GPU out of nothing", ask)
		}
		errorsOf(t, out)
		at, limit := parseTime([]byte(out)), parseLimit([]byte(out))
		has(at.IsZero() || at.Year() <= 9999 && at.Year() >= 0, "time", at)
		d, ok := ParseDuration([]byte(out))
		has(d >= 0 && d == limit && (ok || d == 0) && d <= (maxSeconds+1)*time.Second, "duration", d)
		if ok {
			again, _ := ParseDuration([]byte(clock(d)))
			has(again == d, clock(d), again)
		}
		mib := ParseMiB(out)
		has(mib >= 0, "MiB", mib)
		if g, is := strings.CutSuffix(out, "G"); is {
			has(mib == 1024*ParseMiB(g+"M"), "MiB", mib)
		}
		release := ParseRelease(out)
		has(min(release[0], release[1], release[2]) >= 0, "release", release)
		user, _, _ := User(out)
		has(!strings.Contains(user, "("), "user", user)
		has(!ValidRef(out) || refLen(out) == len(out), "job", out)
		word, _, _ := strings.Cut(out, "=")
		value, there := Option(out, word)
		has(value == "" || there && strings.Contains(out, value), "option", value)
		parseExclusive(out, []byte(out))
		for id, most := range ParseArrayLimits([]byte(out)) {
			has(id >= 0 && most > 0, "array", id)
		}
		Seconds(out)
	})
}

// errorsOf fails the test if what is made of a standard error can't be.
func errorsOf(t *testing.T, stderr string) {
	jobs := UpdateErrors(stderr)
	if len(jobs) > maxTasks*(strings.Count(stderr, "\n")+1) {
		t.Errorf("%d jobs", len(jobs))
	}
	all := "" // a plugin's words over several lines are one message
	for line := range strings.Lines(stderr) {
		if line = strings.TrimSpace(line); line != "" {
			all += line + " "
		}
	}
	for ref, what := range jobs {
		must.Equal(t, refLen(ref), len(ref), ref)
		must.Contain(t, all, what, ref)
	}
	kind := ErrorKind(stderr)
	if kind != job.ErrDown && kind != job.ErrRefused && kind != job.ErrNoJob { //nolint:errorlint // one of the three, as it is
		t.Errorf("%v", kind)
	}
	// Behind it the line could belong to a plugin's words.
	must.Is(t, ErrorKind("Socket timed out on send/recv operation\n"+stderr), job.ErrDown)
	if line := OneLine(stderr); strings.ContainsAny(line, "\r\n") || len(line) > 1100 {
		t.Errorf("%q", line)
	}
}
