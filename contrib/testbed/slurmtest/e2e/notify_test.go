package e2e

import (
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

// Owners get one mail through Slurm's MailProg: on a job that does nothing, and on one that has ended if they asked for
// it. Nothing is done to the jobs. What the node reports is the test's: agents tell nothing in the first minutes.
func TestOwnersAreMailed(t *testing.T) {
	slurmtest.OfOneRelease(t)
	t.Parallel()
	mailed := func(o *slurmtest.Options) {
		before := o.Prepare
		o.Prepare = func(c *slurmtest.Cluster) error {
			c.Options.Extra = append(c.Options.Extra, "MailProg="+c.Path("mailprog"))
			script := "#!/bin/sh\n(printf '[%s]' \"$@\"; echo; timeout 5 cat) >>" + c.Path("run") + "/mails\n"
			return errors.Join(os.WriteFile(c.Path("mailprog"), []byte(script), 0o755), before(c))
		}
	}
	r := newWorld(t, cluster.Setup{NodeGPUs: []int{3}, Settings: []string{"mail_domain: example.org"}, Adjust: mailed})
	asked := r.run("hoomd", ",share:report", "hoomd", "--mail-type=END", "--mail-user=ann@elsewhere.org")
	idle := r.submit("sleep 600", "--gres=gpu:1", "--time=30", "--job-name=x\nBcc: all@example.org\n~!reboot")
	quiet := r.submit("sleep 600", "--gres=gpu:1", "--time=30", "--comment=share:no-mail")
	r.reach("RUNNING", idle, quiet)
	report := &gpuprof.IdleReport{Node: slurmtest.NodeName(0)}
	for _, id := range []string{idle, quiet} {
		number := must.Get(strconv.ParseInt(id, 10, 64))(t)
		report.Jobs = append(report.Jobs, gpuprof.Idle{JobID: number, IdleS: 2 * 3600})
	}
	proof := credential.Choose("", r.MungeSocket).Nodes
	node := &recordhttp.Sender{URL: r.URL, Credentials: proof, Client: http.DefaultClient}
	must.OK(t, node.SendIdle(t.Context(), report))
	r.reach("COMPLETED", asked)
	type mail struct {
		To      []string
		Subject string
	}
	mails := func(args ...string) (out []mail) {
		r.command(&out, append([]string{"notify"}, args...)...)
		return out
	}
	r.until("mails on both jobs are due", func() bool { return len(mails("--dry-run")) == 2 })
	if got := mails(); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	said := string(must.Get(os.ReadFile(r.Path("run", "mails")))(t))
	for _, want := range []string{
		"[-s][Job " + idle + " has not used a GPU for 2h0m][" + ann + "@example.org]\n",
		"\nYour job " + idle + " (x?Bcc: all@example.org?~!reboot) holds a GPU on n1\n",
		"[-s][What job " + asked + " used][ann@elsewhere.org]\njob " + asked + " completed after ",
		"\n  used    it computed ",
		"\n  shared  with nobody\n  cost    nothing\n  saved   ", "[ann@elsewhere.org]\n",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	out := must.Get(r.ask(ann, "why", asked))(t)
	first := strings.Index(said, "job "+asked+" completed")
	if five := strings.Join(strings.SplitAfter(said[max(0, first):], "\n")[:5], ""); !strings.Contains(out, five) {
		t.Errorf("why says something else than the mail:\n%s\n%s", out, five)
	}
	if got := mails(); len(got) > 0 {
		t.Errorf("once more: %+v", got)
	}
	r.reach("RUNNING", idle, quiet)
	t.Logf("\n%s", said)
}
