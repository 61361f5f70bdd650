package doctor

import (
	"regexp"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// gresConf: slurm.conf promises shares; gres.conf says which device they are of.
func (e *exam) gresConf() {
	if e.ConfDir == "" {
		return
	}
	var missing, lines []string
	for _, kind := range []string{"mps", "shard"} {
		if !slices.ContainsFunc(e.gpuNodes(), func(n *text.Node) bool { return n.Shares[kind] > 0 }) {
			continue
		}
		if e.GresConf == nil || !gresName(kind).MatchString(*e.GresConf) && !includes.MatchString(*e.GresConf) {
			missing = append(missing, "Name="+kind)
			lines = append(lines, "Name="+kind+" Count=100 File=/dev/nvidia0")
		}
	}
	if len(missing) == 0 {
		return
	}
	file := e.beside("gres.conf")
	fix := Fix{File: file, Lines: append([]string{"Name=gpu Type=TYPE File=/dev/nvidia0"}, lines...)}
	if e.GresConf == nil {
		e.add("gres-conf", Error, file+" is not there", "nodes then find no GPU to give out, and Slurm takes them out of service", fix)
		return
	}
	e.add("gres-conf", Warning, file+" has no line of "+strings.Join(missing, ", "),
		"unless the nodes have a gres.conf of their own they don't know which GPU the shares are of", fix)
}

var includes = regexp.MustCompile(`(?im)^\s*include\s`)

func gresName(kind string) *regexp.Regexp {
	return regexp.MustCompile(`(?im)^[^#\n]*\bname=` + kind + `\b`)
}

// invalid: nodes that came with less than slurm.conf promises.
func (e *exam) invalid() {
	var names []string
	for _, n := range e.gpuNodes() {
		if strings.Contains(strings.ToUpper(n.State), "INVALID_REG") {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	list := strings.Join(names, ",")
	e.add("node-invalid", Error, "Slurm doesn't take "+list+": less is there than slurm.conf says",
		"mostly gres.conf on the node names fewer GPUs or shares than Gres= in slurm.conf, or another type",
		Fix{Lines: []string{
			"scontrol show node " + list + " | grep Reason", "slurmd -G   # on the node: what it finds",
			"systemctl restart slurmd   # on the node, when gres.conf is right",
		}})
}
