package rpc

// pending is the table of exchanges that wait for an answer, by id. Ids are drawn from one counter and the
// slot is the id's low bits, so that a look-up is one comparison and nothing is allocated once the table has
// the size of the load; a slot still taken by an old, slow exchange is stepped over.
type pending struct {
	slots []*Exchange
	n     int
	last  uint64
}

// add draws an id for x and keeps it.
func (p *pending) add(x *Exchange) {
	if 2*(p.n+1) > len(p.slots) {
		p.grow()
	}
	for {
		p.last++
		if slot := &p.slots[p.last&uint64(len(p.slots)-1)]; *slot == nil {
			*slot, x.id = x, p.last
			p.n++
			return
		}
	}
}

// grow doubles the table. Two ids that differ in their low bits still do in one bit more.
func (p *pending) grow() {
	old := p.slots
	p.slots = make([]*Exchange, max(16, 2*len(old)))
	for _, x := range old {
		if x != nil {
			p.slots[x.id&uint64(len(p.slots)-1)] = x
		}
	}
}

func (p *pending) get(id uint64) *Exchange {
	if len(p.slots) == 0 {
		return nil
	}
	if x := p.slots[id&uint64(len(p.slots)-1)]; x != nil && x.id == id {
		return x
	}
	return nil
}

// take removes the exchange with this id and returns it, nil if there is none: whoever takes it delivers it.
func (p *pending) take(id uint64) *Exchange {
	x := p.get(id)
	if x != nil {
		p.slots[id&uint64(len(p.slots)-1)] = nil
		p.n--
	}
	return x
}

// rest lets go of the table that a crowd has left behind, when nothing waits. (Not in take: a steady crowd comes by
// zero often enough for that to cost it a tenth.)
func (p *pending) rest() {
	if p.n == 0 {
		p.slots = nil
	}
}

// each calls f for every exchange in the table; f may take the one it is called with.
func (p *pending) each(f func(*Exchange)) {
	for _, x := range p.slots {
		if x != nil {
			f(x)
		}
	}
}
