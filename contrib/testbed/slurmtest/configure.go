package slurmtest

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// NodeName is the i-th node's name, from 0.
func NodeName(i int) string { return "n" + strconv.Itoa(i+1) }

// Partition is the cluster's only partition, unless Options.Extra has more.
const Partition = "gpu"

// shared are the indexes of the GPUs of node i that have shares.
func (o *Options) shared(i int) []string {
	var out []string
	for g := range o.Cards[i] {
		if !slices.Contains(o.Unshared, g) {
			out = append(out, strconv.Itoa(g))
		}
	}
	return out
}

// Gres is node i's Gres: the types of its GPUs, and their shares.
func (o *Options) Gres(i int) string {
	var out []string
	types := o.Cards[i]
	for k, typ := range types {
		if !slices.Contains(types[:k], typ) {
			others := slices.DeleteFunc(slices.Clone(types), func(t string) bool { return t != typ })
			out = append(out, fmt.Sprintf("gpu:%s:%d", typ, len(others)))
		}
	}
	if o.Sharing != "none" {
		out = append(out, fmt.Sprintf("%s:%d", o.Sharing, 100*len(o.shared(i))))
	}
	return strings.Join(out, ",")
}

// More is what else node i's line in slurm.conf has.
func (o *Options) More(i int) string {
	if i < len(o.NodeMore) {
		return o.NodeMore[i]
	}
	return ""
}

// configure writes slurm.conf, gres.conf, cgroup.conf and the job_submit script.
func (c *Cluster) configure() error {
	slurmConf, err := c.slurmConf()
	if err != nil {
		return err
	}
	files := map[string]string{
		"slurm.conf": slurmConf,
		"gres.conf":  c.gresConf(),
		// Releases that would use cgroups by themselves are configured not to; older ones
		// don't know this value, and need none without a cgroup plugin.
		"cgroup.conf": "CgroupPlugin=disabled\n",
	}
	if c.Release < "23.11" {
		files["cgroup.conf"] = "CgroupAutomount=no\n"
	}
	if c.Options.Lua != "" {
		text, err := os.ReadFile(c.Options.Lua)
		if err != nil {
			return err
		}
		files["job_submit.lua"] = strings.ReplaceAll(string(text), "/run/slurmbridge/", "DIR/run/")
	}
	maps.Copy(files, c.Options.Files)
	for name, text := range files {
		if err := os.WriteFile(c.Path(name), []byte(strings.ReplaceAll(text, "DIR", c.Dir)), 0o644); err != nil {
			return err
		}
	}
	for i := range c.Options.Nodes {
		if err := os.MkdirAll(c.Path("spool", NodeName(i)), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) backupHost() string { return c.host + "b" }

// name is the cluster's.
func (c *Cluster) name() string { return filepath.Base(c.Dir) }

//go:embed slurm.conf.tmpl
var slurmConf string

// slurmConf is slurm.conf, in which DIR is the cluster's folder.
func (c *Cluster) slurmConf() (string, error) {
	o := &c.Options
	var names []string
	for i := range o.Nodes {
		if !slices.Contains(o.Apart, i) {
			names = append(names, NodeName(i))
		}
	}
	t, err := template.New("slurm.conf").Funcs(template.FuncMap{"node": NodeName}).Parse(slurmConf)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, struct {
		*Options
		Name, Host, BackupHost, Port, DbdPort, Partition, All string

		Ports    []string
		Settings map[string]string
	}{
		o, c.name(), c.host, c.backupHost(), c.port, c.dbdPort, Partition, strings.Join(names, ","), c.nodePorts,
		map[string]string{
			"Prolog": o.Prolog, "Epilog": o.Epilog, "TaskProlog": o.TaskProlog, "EpilogSlurmctld": o.EpilogSlurmctld,
			"SchedulerParameters": o.Scheduler, "JobSubmitPlugins": o.JobSubmit,
			"SuspendProgram": o.suspend(), "ResumeProgram": o.resume(),
		},
	})
	return b.String(), err
}

func (c *Cluster) gresConf() string {
	o := &c.Options
	var b strings.Builder
	for i, types := range o.Cards {
		for k, typ := range types {
			file := "File=" + c.Path("dev", fmt.Sprint("nvidia", k))
			if isInstance(typ) {
				file = fmt.Sprintf("MultipleFiles=%s,%s%d", c.Path("dev/nvidia0"), c.Path("dev/nvidia-caps/nvidia-cap"), k)
			}
			if o.GPUMore != nil {
				file += " " + o.GPUMore(i, k)
			}
			fmt.Fprintf(&b, "NodeName=%s Name=gpu Type=%s %s\n", NodeName(i), typ, file)
		}
		if o.Sharing == "none" {
			continue
		}
		shared, more := o.shared(i), ""
		if !o.instances() {
			more = " File=" + c.Path("dev/nvidia") + "[" + strings.Join(shared, ",") + "]"
		}
		if o.Sharing == "mps" {
			more += " Flags=all_sharing" // without it a node shares one of its GPUs at a time
		}
		fmt.Fprintf(&b, "NodeName=%s Name=%s Count=%d%s\n", NodeName(i), o.Sharing, 100*len(shared), more)
	}
	return b.String()
}
